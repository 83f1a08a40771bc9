//! Our own runtime on NVIDIA GPUs. A plan from `graph` becomes a program of kernels that are chosen by measurement, and
//! a program becomes one CUDA graph for each batch size. [`engine`] is what a server uses; [`tools`] is for programs
//! that measure what is under it.
#![allow(unsafe_code)] // The driver and NVIDIA's libraries are C interfaces; each block says why it is sound.

mod addresses;
mod batch;
mod blobs;
mod choices;
mod driver;
pub mod engine;
mod executor;
pub mod fallback;
mod fetch;
mod memory;
mod model;
mod open;
mod parts;
mod pool;
mod program;
mod quiet;
mod shapes;
mod shares;
mod sizes;
mod slabs;
mod source;
mod split;
mod standby;
mod streams;
mod tail;
mod toolkit;
pub mod tools;
