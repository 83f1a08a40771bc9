//! Compiles the protocol's protobuf description. `protox` reads it, so no `protoc` has to be installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/inference.proto");
    let files = protox::compile(["proto/inference.proto"], ["proto"])?;
    // Tensors as `Bytes` are slices of the received message instead of copies; maps of parameters are tiny, and ordered
    // ones need no hashing.
    tonic_prost_build::configure().bytes(".").btree_map(".").compile_fds(files)?;
    Ok(())
}
