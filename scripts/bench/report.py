"""docs/benchmarks.md"""
def write():
    return "nothing"
