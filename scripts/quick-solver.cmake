# For tests: HiGHS takes a third less to compile for size than for speed. Its crate always builds cmake's "Release", whatever cargo's profile says.
set(CMAKE_CXX_FLAGS_RELEASE "-Os -DNDEBUG" CACHE STRING "" FORCE)
