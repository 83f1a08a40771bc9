// The largest of a row and the sum of the exponentials under it, in one pass: in front of rows.cu.
struct Sum { float most, sum; };
__device__ __forceinline__ Sum joined(Sum a, Sum b) {
    Sum c;
    c.most = fmaxf(a.most, b.most);
    c.sum = (a.sum > 0.0f ? a.sum * __expf(a.most - c.most) : 0.0f) + (b.sum > 0.0f ? b.sum * __expf(b.most - c.most) : 0.0f);
    return c;
}
#define COMBINED Sum
#define JOINED(a, b) joined(a, b)

