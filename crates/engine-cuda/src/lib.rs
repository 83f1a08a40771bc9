//! Our own runtime on NVIDIA GPUs. A plan from `graph` becomes a program of kernels that are chosen by measurement ([`program`]), and a
//! program becomes one CUDA graph for each batch size.
#![allow(unsafe_code)] // The driver and NVIDIA's libraries are C interfaces; each block says why it is sound.

pub mod addresses;
mod batch;
pub mod blobs;
pub mod choices;
pub mod driver;
pub mod engine;
mod executor;
pub mod fetch;
pub mod memory;
mod model;
pub mod pool;
pub mod program;
pub mod shares;
pub mod sizes;
pub mod slabs;
pub mod source;
pub mod split;
pub mod streams;
pub mod toolkit;
