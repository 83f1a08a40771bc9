// The best element of a row, and where it is: in front of rows.cu.
//
// Given: VALUE, what elements are compared as; BETTER(a, b), the order of values; EARLIER(a, b), which of two equal
// ones is taken.
struct Best { VALUE x; i64 at; };
#define COMBINED Best
#define JOINED(a, b) b.at >= 0 && (a.at < 0 || BETTER(b.x, a.x) || (b.x == a.x && EARLIER(b.at, a.at))) ? b : a

