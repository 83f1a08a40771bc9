//! Compiles the protocol's protobuf description. `protox` reads it, so no `protoc` has to be installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/inference.proto");
    let files = protox::compile(["proto/inference.proto"], ["proto"])?;
    // Tensors as `Bytes` are slices of the received message instead of copies; maps of parameters are tiny, and ordered
    // ones need no hashing.
    // The codec is ours: it looks at messages before it reads them.
    let settings = tonic_prost_build::configure().bytes(".").btree_map(".");
    settings.codec_path("crate::codec::Codec").compile_fds(files)?;
    Ok(())
}
