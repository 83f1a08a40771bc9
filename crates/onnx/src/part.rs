//! Some nodes of a model as a model of their own, in the bytes of its file: what nobody declares here stays as it is.

use crate::defaults::{next_field, with_ir_version};
use crate::{GraphProto, Message, ModelProto, NodeProto, ValueInfoProto};
use bytes::Bytes;
use prost::DecodeError;
use prost::encoding::{WireType, encode_key, encode_varint};
use std::collections::{HashMap, HashSet};

const GRAPH: u32 = 7;
const NODE: u32 = 1;
const INITIALIZER: u32 = 5;
const INPUT: u32 = 11;
const OUTPUT: u32 = 12;
/// What is said of tensors between nodes. Runtimes find it out by themselves.
const VALUE_INFO: u32 = 13;
const QUANTIZATION: u32 = 14;
const SPARSE_INITIALIZER: u32 = 15;

/// What a part of a model is made of.
#[derive(Clone, Copy, Debug)]
pub struct ModelPart<'a> {
    /// By the position of a node in the file: whether it is among them.
    pub nodes: &'a [bool],
    /// What the part takes; as the file declares it where that is an input of the file.
    pub inputs: &'a [ValueInfoProto],
    /// What it gives; likewise.
    pub outputs: &'a [ValueInfoProto],
}

/// The file of a part: its nodes, the constants that they or its outputs name, and of everything beside the graph
/// (versions of operators, functions) all there is. What is in other files stays there.
pub fn part(file: &Bytes, part: ModelPart<'_>) -> Result<Bytes, DecodeError> {
    let model = ModelProto::decode(file.clone())?;
    let graph = model.graph.unwrap_or_default();
    let (mut changed, mut content, mut rest) = (Vec::new(), Vec::new(), &file[..]);
    while !rest.is_empty() {
        let field = next_field(&mut rest)?;
        match field.content {
            // The format lets a message come in several pieces, which are one behind another.
            Some(piece) if field.tag == GRAPH => content.extend_from_slice(piece),
            _ => changed.extend_from_slice(field.whole),
        }
    }
    push(&mut changed, GRAPH, &part_of(&content, &graph, part)?);
    Ok(with_ir_version(changed, model.ir_version).into())
}

fn part_of(content: &[u8], graph: &GraphProto, part: ModelPart<'_>) -> Result<Vec<u8>, DecodeError> {
    let nodes = graph.nodes.iter().zip(part.nodes).filter(|(_, is_in)| **is_in);
    let mut named: HashSet<&str> = nodes.flat_map(|(node, _)| node.names()).collect();
    named.extend(part.outputs.iter().map(|output| output.name.as_str()));
    let initializers: Vec<bool> = graph.initializers.iter().map(|tensor| named.contains(&*tensor.name)).collect();
    let sparse = graph.sparse_initializers.iter();
    let sparse: Vec<bool> =
        sparse.map(|sparse| sparse.values.as_ref().is_some_and(|values| named.contains(&*values.name))).collect();
    let (mut at, mut changed, mut rest) = (HashMap::<u32, usize>::new(), Vec::new(), content);
    let (mut inputs, mut outputs) = (HashMap::new(), HashMap::new());
    while !rest.is_empty() {
        let field = next_field(&mut rest)?;
        let position = at.entry(field.tag).or_default();
        let is_in = |list: &[bool]| list.get(*position).copied().unwrap_or(false);
        let stays = match (field.tag, field.content) {
            (NODE, _) => is_in(part.nodes),
            (INITIALIZER, _) => is_in(&initializers),
            (SPARSE_INITIALIZER, _) => is_in(&sparse),
            (VALUE_INFO | QUANTIZATION, _) => false,
            (INPUT | OUTPUT, Some(content)) => {
                let known = if field.tag == INPUT { &mut inputs } else { &mut outputs };
                known.insert(ValueInfoProto::decode(content)?.name, content);
                false
            }
            _ => true,
        };
        *position += 1;
        if stays {
            changed.extend_from_slice(field.whole);
        }
    }
    for (tag, declared, known) in [(INPUT, part.inputs, inputs), (OUTPUT, part.outputs, outputs)] {
        for value in declared {
            match known.get(&value.name) {
                Some(content) => push(&mut changed, tag, content),
                None => push(&mut changed, tag, &value.encode_to_vec()),
            }
        }
    }
    Ok(changed)
}

/// Adds a field that is a message.
fn push(message: &mut Vec<u8>, tag: u32, content: &[u8]) {
    encode_key(tag, WireType::LengthDelimited, message);
    encode_varint(content.len() as u64, message);
    message.extend_from_slice(content);
}

impl NodeProto {
    /// All that it reads, also what graphs within it name of what is around them: and what these have themselves.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.inputs.iter().map(String::as_str).filter(|name| !name.is_empty()).collect();
        for graph in self.graphs() {
            names.extend(graph.nodes.iter().flat_map(NodeProto::names));
            names.extend(graph.outputs.iter().map(|output| output.name.as_str()));
        }
        names
    }

    /// The graphs within it.
    pub fn graphs(&self) -> impl Iterator<Item = &GraphProto> {
        self.attributes.iter().flat_map(|attribute| attribute.graph.iter().chain(&attribute.graphs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AttributeProto, FunctionProto, OpsetProto, TensorProto};

    fn value(name: &str) -> ValueInfoProto {
        ValueInfoProto { name: name.into(), kind: None }
    }

    fn node(operator: &str, inputs: &[&str], output: &str) -> NodeProto {
        let inputs = inputs.iter().map(|&name| name.to_owned()).collect();
        NodeProto { inputs, outputs: vec![output.into()], operator: operator.into(), ..NodeProto::default() }
    }

    /// A graph within the last of three nodes names a constant; a constant is an input, as old files have it.
    fn file() -> Bytes {
        let within = GraphProto { nodes: vec![node("Add", &["b", "w2"], "c")], ..GraphProto::default() };
        let branch = AttributeProto { name: "then_branch".into(), graph: Some(within), ..AttributeProto::default() };
        let mut last = node("If", &["yes"], "d");
        last.attributes.push(branch);
        let weight = |name: &str| TensorProto { name: name.into(), floats: vec![1.0], ..TensorProto::default() };
        let graph = GraphProto {
            nodes: vec![node("Mul", &["x", "w1"], "a"), node("Mul", &["a", "both"], "b"), last],
            initializers: ["w1", "both", "w2", "unused"].map(weight).into(),
            inputs: ["x", "w1", "yes"].map(value).into(),
            outputs: vec![value("d")],
            ..GraphProto::default()
        };
        let opsets = vec![OpsetProto { domain: "own".into(), version: 3 }];
        let functions = vec![FunctionProto { name: "f".into(), ..FunctionProto::default() }];
        let mut file = ModelProto { ir_version: 3, graph: Some(graph), opsets, functions }.encode_to_vec();
        // A field that isn't declared here: the producer's name.
        file.extend_from_slice(b"\x12\x02me");
        file.into()
    }

    fn cut(nodes: [bool; 3], inputs: &[&str], outputs: &[&str]) -> ModelProto {
        let ports = |names: &[&str]| names.iter().map(|name| value(name)).collect::<Vec<_>>();
        let (inputs, outputs) = (ports(inputs), ports(outputs));
        let bytes = part(&file(), ModelPart { nodes: &nodes, inputs: &inputs, outputs: &outputs }).unwrap();
        assert!(bytes.windows(4).any(|part| part == b"\x12\x02me"));
        ModelProto::decode(bytes).unwrap()
    }

    #[test]
    fn a_part_has_its_nodes_and_the_constants_that_they_name_and_no_others() {
        let names = |model: &ModelProto| {
            let graph = model.graph.as_ref().unwrap();
            let nodes: Vec<_> = graph.nodes.iter().map(|node| node.outputs[0].clone()).collect();
            let constants: Vec<_> = graph.initializers.iter().map(|tensor| tensor.name.clone()).collect();
            let ports = graph.inputs.iter().chain(&graph.outputs).map(|port| port.name.clone()).collect::<Vec<_>>();
            (nodes.join(" "), constants.join(" "), ports.join(" "))
        };
        let head = cut([true, true, false], &["x"], &["b"]);
        assert_eq!(names(&head), ("a b".into(), "w1 both".into(), "x b".into()));
        let tail = cut([false, true, true], &["yes", "a"], &["d"]);
        assert_eq!(names(&tail), ("b d".into(), "both w2".into(), "yes a d".into()));
        for model in [head, tail] {
            assert_eq!((model.ir_version, model.opsets.len(), model.functions.len()), (4, 1, 1));
        }
    }

    #[test]
    fn a_graph_in_pieces_is_one_graph() {
        let ports = [value("x"), value("b")];
        let of = |file: &Bytes| {
            let part_of = ModelPart { nodes: &[true, true, false], inputs: &ports[..1], outputs: &ports[1..] };
            ModelProto::decode(part(file, part_of).unwrap()).unwrap()
        };
        let whole = ModelProto::decode(file()).unwrap();
        let graph = whole.graph.clone().unwrap();
        let (first, second) = (graph.nodes[..1].to_vec(), graph.nodes[1..].to_vec());
        let first = GraphProto { nodes: first, ..GraphProto::default() };
        let second = GraphProto { nodes: second, ..graph };
        let mut pieces = ModelProto { graph: Some(first), ..whole }.encode_to_vec();
        push(&mut pieces, GRAPH, &second.encode_to_vec());
        assert_eq!(of(&pieces.into()).graph, of(&file()).graph);
    }

    #[test]
    fn a_part_of_a_file_has_no_part() {
        let cut_short = file().slice(..40);
        assert!(part(&cut_short, ModelPart { nodes: &[], inputs: &[], outputs: &[] }).is_err());
    }
}
