//! HTTP and gRPC front end.
