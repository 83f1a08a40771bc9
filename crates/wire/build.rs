//! Compiles the protocol's protobuf description. `protox` reads it, so no `protoc` has to be installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["proto/inference.proto"], ["proto"])?;
    // The description itself is part of the program: what is said as JSON and over reflection comes from it.
    let described = std::path::Path::new(&std::env::var("OUT_DIR")?).join("inference.bin");
    std::fs::write(described, prost::Message::encode_to_vec(&files))?;
    // Tensors as `Bytes` are slices of the received message instead of copies; maps of parameters are tiny, and ordered
    // ones need no hashing.
    // The server reads its messages itself, within bounds.
    tonic_prost_build::configure().build_server(false).bytes(".").btree_map(".").compile_fds(files)?;
    Ok(())
}
