//! A model as its file has it: nodes, constants, inputs and outputs.

use crate::array::{Array, Data, is_float, load_float, load_int};
use crate::error::GraphError;
use base::DataType;
use onnx::{AttributeProto, FunctionProto, GraphProto, Message, ModelProto, NodeProto, TensorProto, ValueInfoProto};
use std::collections::{BTreeMap, HashMap};
use std::path::{Component, Path};
use std::sync::Arc;

/// Functions call functions, so deep at most: each level is one of the stack.
const MOST_DEPTH: usize = 64;
/// So many calls of functions a model may have. Each becomes the nodes of the function.
const MOST_CALLS: usize = 1 << 16;

/// A model, read once; any number of plans are made from it.
#[derive(Clone, Debug)]
pub struct OnnxModel {
    pub(crate) graph: Scope,
    pub(crate) opset: i64,
    inputs: Vec<ModelInput>,
    outputs: Vec<String>,
    output_types: Vec<DataType>,
}

/// Nodes and the constants that they may name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    pub(crate) nodes: Vec<OnnxNode>,
    pub(crate) constants: Vec<(String, Arc<Array>)>,
    /// What the outer scope gives it.
    pub(crate) inputs: Vec<String>,
    /// What the outer scope gets from it; empty for the model itself.
    pub(crate) outputs: Vec<String>,
}

/// An input of a model.
#[derive(Clone, PartialEq, Debug)]
pub struct ModelInput {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub dtype: DataType,
    /// Its dimensions.
    pub dims: Vec<Dimension>,
}

/// A dimension of an input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Dimension {
    /// Always this.
    Fixed(usize),
    /// Open, with a name that may be empty.
    Open(String),
}

#[derive(Clone, Debug)]
pub(crate) struct OnnxNode {
    pub(crate) name: String,
    pub(crate) operator: String,
    pub(crate) inputs: Vec<String>,
    pub(crate) outputs: Vec<String>,
    attributes: BTreeMap<String, Attribute>,
}

#[derive(Clone, Debug)]
pub(crate) enum Attribute {
    Float(f32),
    Int(i64),
    Text(String),
    Tensor(Arc<Array>),
    Graph(Arc<Scope>),
    Floats(Vec<f32>),
    Ints(Vec<i64>),
    Texts(Vec<String>),
}

impl OnnxModel {
    /// Reads a file, and those next to it in which it keeps weights.
    pub fn read(path: &Path) -> Result<Self, GraphError> {
        let bytes = std::fs::read(path).map_err(|error| GraphError::Io { path: path.to_owned(), error })?;
        Self::decode(&bytes, path.parent())
    }

    /// Reads a model from memory. External weights are looked up in `folder`.
    pub fn decode(bytes: &[u8], folder: Option<&Path>) -> Result<Self, GraphError> {
        let model = ModelProto::decode(bytes).map_err(|error| GraphError::NotOnnx(error.to_string()))?;
        let mut reader = Reader { folder, files: HashMap::new(), functions: &model.functions, depth: 0, calls: 0 };
        let standard = |domain: &str| domain.is_empty() || domain == "ai.onnx";
        let opset = model.opsets.iter().find(|opset| standard(&opset.domain)).map_or(1, |opset| opset.version);
        let graph = model.graph.as_ref().ok_or_else(|| GraphError::NotOnnx("it has no graph".into()))?;
        let known: Vec<_> = graph.initializers.iter().map(|tensor| tensor.name.as_str()).collect();
        let inputs = graph.inputs.iter().filter(|input| !known.contains(&input.name.as_str()));
        let inputs = inputs.map(input).collect::<Result<_, _>>()?;
        let outputs: Vec<_> = graph.outputs.iter().map(|output| output.name.clone()).collect();
        let output_types =
            graph.outputs.iter().map(|output| Ok(input(output)?.dtype)).collect::<Result<_, GraphError>>()?;
        Ok(Self { graph: reader.scope(graph)?, opset, inputs, outputs, output_types })
    }

    /// What it takes, without what has a value in the file.
    pub fn inputs(&self) -> &[ModelInput] {
        &self.inputs
    }

    /// The names of what it gives.
    pub fn outputs(&self) -> &[String] {
        &self.outputs
    }

    /// The constants that the file names.
    pub fn constants(&self) -> impl Iterator<Item = (&str, &Array)> {
        self.graph.constants.iter().map(|(name, array)| (name.as_str(), &**array))
    }

    pub(crate) fn output_type(&self, index: usize) -> DataType {
        self.output_types[index]
    }
}

fn input(value: &ValueInfoProto) -> Result<ModelInput, GraphError> {
    let kind = value.kind.as_ref().and_then(|kind| kind.tensor.as_ref());
    let kind = kind.ok_or_else(|| GraphError::NotOnnx(format!("{:?} is not a tensor", value.name)))?;
    let dims = kind.shape.iter().flat_map(|shape| &shape.dims);
    // Some exporters write `?` for what they don't know: no name, though it stands there twice.
    let is_name = |name: &&String| name.contains(char::is_alphanumeric);
    let dims = dims.map(|dim| match dim.value {
        Some(value) if value >= 0 => Dimension::Fixed(value as usize),
        _ => Dimension::Open(dim.name.as_ref().filter(is_name).cloned().unwrap_or_default()),
    });
    Ok(ModelInput { name: value.name.clone(), dtype: element(kind.element)?, dims: dims.collect() })
}

/// The type of that number in the format.
pub(crate) fn element(number: i32) -> Result<DataType, GraphError> {
    Ok(match number {
        1 => DataType::Fp32,
        2 => DataType::Uint8,
        3 => DataType::Int8,
        4 => DataType::Uint16,
        5 => DataType::Int16,
        6 => DataType::Int32,
        7 => DataType::Int64,
        9 => DataType::Bool,
        10 => DataType::Fp16,
        11 => DataType::Fp64,
        12 => DataType::Uint32,
        13 => DataType::Uint64,
        16 => DataType::Bf16,
        _ => return Err(GraphError::NotOnnx(format!("elements of type {number} are not supported"))),
    })
}

/// What the format's number of that type is.
pub(crate) fn element_number(dtype: DataType) -> Option<i32> {
    (1..=16).find(|&number| element(number).is_ok_and(|known| known == dtype))
}

struct Reader<'a> {
    folder: Option<&'a Path>,
    files: HashMap<String, Arc<Vec<u8>>>,
    functions: &'a [FunctionProto],
    /// In so many calls the node at hand is.
    depth: usize,
    /// So many calls there were.
    calls: usize,
}

impl Reader<'_> {
    fn scope(&mut self, graph: &GraphProto) -> Result<Scope, GraphError> {
        let constants = graph.initializers.iter();
        let constants = constants.map(|tensor| Ok((tensor.name.clone(), Arc::new(self.tensor(tensor)?))));
        let constants = constants.collect::<Result<_, GraphError>>()?;
        let mut nodes = Vec::new();
        for node in &graph.nodes {
            self.node(node, &mut nodes)?;
        }
        let names = |values: &[ValueInfoProto]| values.iter().map(|value| value.name.clone()).collect();
        Ok(Scope { nodes, constants, inputs: names(&graph.inputs), outputs: names(&graph.outputs) })
    }

    /// Reads a node; calls of a model's own functions become the nodes of the function.
    fn node(&mut self, node: &NodeProto, nodes: &mut Vec<OnnxNode>) -> Result<(), GraphError> {
        let called = |function: &&FunctionProto| function.name == node.operator && function.domain == node.domain;
        if let Some(function) = self.functions.iter().find(called) {
            return self.call(node, function, nodes);
        }
        let mut attributes = BTreeMap::new();
        for attribute in &node.attributes {
            attributes.insert(attribute.name.clone(), self.attribute(attribute)?);
        }
        let foreign = !node.domain.is_empty() && node.domain != "ai.onnx";
        nodes.push(OnnxNode {
            name: if node.name.is_empty() {
                node.outputs.first().cloned().unwrap_or_default()
            } else {
                node.name.clone()
            },
            operator: if foreign { format!("{}.{}", node.domain, node.operator) } else { node.operator.clone() },
            inputs: node.inputs.clone(),
            outputs: node.outputs.clone(),
            attributes,
        });
        Ok(())
    }

    fn call(
        &mut self,
        node: &NodeProto,
        function: &FunctionProto,
        nodes: &mut Vec<OnnxNode>,
    ) -> Result<(), GraphError> {
        (self.depth, self.calls) = (self.depth + 1, self.calls + 1);
        let bad = |why: &str| Err(GraphError::NotOnnx(format!("its functions {why}: {:?}", function.name)));
        if self.depth > MOST_DEPTH {
            return bad("call one another too deep");
        }
        if self.calls > MOST_CALLS {
            return bad("are called too often");
        }
        let prefix = node.outputs.first().cloned().unwrap_or_default();
        let inside = function.inputs.iter().zip(node.inputs.iter().map(String::as_str).chain(std::iter::repeat("")));
        let outside: HashMap<&str, &str> = inside
            .map(|(inner, outer)| (inner.as_str(), outer))
            .chain(function.outputs.iter().map(String::as_str).zip(node.outputs.iter().map(String::as_str)))
            .collect();
        let rename = |name: &String| match outside.get(name.as_str()) {
            Some(outer) => (*outer).to_owned(),
            None if name.is_empty() => String::new(),
            None => format!("{prefix}/{name}"),
        };
        for inner in &function.nodes {
            let mut copy = inner.clone();
            copy.inputs = inner.inputs.iter().map(rename).collect();
            copy.outputs = inner.outputs.iter().map(rename).collect();
            copy.name = format!("{prefix}/{}", inner.name);
            self.node(&copy, nodes)?;
        }
        self.depth -= 1;
        Ok(())
    }

    fn attribute(&mut self, attribute: &AttributeProto) -> Result<Attribute, GraphError> {
        let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        Ok(match attribute.kind {
            1 => Attribute::Float(attribute.float),
            2 => Attribute::Int(attribute.int),
            3 => Attribute::Text(text(&attribute.string)),
            4 => Attribute::Tensor(Arc::new(self.tensor(&attribute.tensor.clone().unwrap_or_default())?)),
            5 => Attribute::Graph(Arc::new(self.scope(&attribute.graph.clone().unwrap_or_default())?)),
            6 => Attribute::Floats(attribute.floats.clone()),
            7 => Attribute::Ints(attribute.ints.clone()),
            8 => Attribute::Texts(attribute.strings.iter().map(text).collect()),
            kind => {
                return Err(GraphError::NotOnnx(format!("attribute {:?} has the unknown kind {kind}", attribute.name)));
            }
        })
    }

    fn tensor(&mut self, tensor: &TensorProto) -> Result<Array, GraphError> {
        let bad = |what: &str| GraphError::NotOnnx(format!("constant {:?} {what}", tensor.name));
        let dtype = element(tensor.element)?;
        let count = base::element_count(&tensor.dims).ok_or_else(|| bad("has impossible dimensions"))?;
        let dims: Vec<_> = tensor.dims.iter().map(|&dim| dim as usize).collect();
        let size = crate::weights::element_bytes(dtype);
        let file;
        let raw = if tensor.location == 1 {
            file = self.external(tensor)?;
            let start = tensor.external("offset").map(str::parse::<usize>).transpose();
            let start = start.map_err(|_| bad("has no readable offset"))?.unwrap_or(0);
            start
                .checked_add(count * size)
                .and_then(|end| file.get(start..end))
                .ok_or_else(|| bad("ends behind its file"))?
        } else {
            &tensor.raw[..]
        };
        let data = if !raw.is_empty() || tensor.location == 1 {
            if raw.len() != count * size {
                return Err(bad("has another number of bytes than its dimensions say"));
            }
            let elements = raw.chunks_exact(size);
            if is_float(dtype) {
                Data::Float(elements.map(|bytes| load_float(dtype, bytes)).collect())
            } else {
                Data::Int(elements.map(|bytes| load_int(dtype, bytes)).collect())
            }
        } else {
            listed(tensor, dtype)
        };
        let found = match &data {
            Data::Float(data) => data.len(),
            Data::Int(data) => data.len(),
        };
        if found != count {
            return Err(bad("has another number of elements than its dimensions say"));
        }
        Ok(Array::new(dtype, &dims, data))
    }

    /// The file in which a constant is: in the model's folder or below, never elsewhere.
    fn external(&mut self, tensor: &TensorProto) -> Result<Arc<Vec<u8>>, GraphError> {
        let name = tensor.external("location").unwrap_or_default();
        if let Some(file) = self.files.get(name) {
            return Ok(file.clone());
        }
        let inside = |part| matches!(part, Component::Normal(_) | Component::CurDir);
        let folder = self.folder.filter(|_| !name.is_empty() && Path::new(name).components().all(inside));
        let folder =
            folder.ok_or_else(|| GraphError::NotOnnx(format!("it keeps weights in {name:?}, not in its folder")))?;
        let path = folder.join(name);
        let bytes = read_plain(&path).map_err(|error| GraphError::Io { path, error })?;
        Ok(self.files.entry(name.to_owned()).or_insert(Arc::new(bytes)).clone())
    }
}

/// All bytes of a plain file: devices and pipes might never end.
fn read_plain(path: &Path) -> std::io::Result<Vec<u8>> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is not a plain file"));
    }
    std::fs::read(path)
}

/// Elements that are listed in fields of their own instead of as bytes.
fn listed(tensor: &TensorProto, dtype: DataType) -> Data {
    let halves = || tensor.int32s.iter().map(|&bits| (bits as u16).to_le_bytes());
    match dtype {
        DataType::Fp32 => Data::Float(tensor.floats.clone()),
        DataType::Fp64 => Data::Float(tensor.doubles.iter().map(|&value| value as f32).collect()),
        DataType::Fp16 | DataType::Bf16 => Data::Float(halves().map(|bits| load_float(dtype, &bits)).collect()),
        DataType::Int64 => Data::Int(tensor.int64s.clone()),
        DataType::Uint32 | DataType::Uint64 => Data::Int(tensor.uint64s.iter().map(|&value| value as i64).collect()),
        _ => Data::Int(tensor.int32s.iter().map(|&value| i64::from(value)).collect()),
    }
}

impl OnnxNode {
    pub(crate) fn has(&self, name: &str) -> bool {
        self.attributes.contains_key(name)
    }

    /// All that it reads, also what graphs within it name; and what these have themselves.
    pub(crate) fn names(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        let within = self.attributes.values().filter_map(|attribute| match attribute {
            Attribute::Graph(scope) => Some(scope),
            _ => None,
        });
        let within = within
            .flat_map(|scope| scope.nodes.iter().flat_map(Self::names).chain(scope.outputs.iter().map(String::as_str)));
        Box::new(self.inputs.iter().map(String::as_str).filter(|name| !name.is_empty()).chain(within))
    }

    /// Whether an attribute of it is a graph.
    pub(crate) fn has_graph(&self) -> bool {
        self.attributes.values().any(|attribute| matches!(attribute, Attribute::Graph(_)))
    }

    pub(crate) fn int(&self, name: &str, otherwise: i64) -> i64 {
        match self.attributes.get(name) {
            Some(&Attribute::Int(value)) => value,
            _ => otherwise,
        }
    }

    pub(crate) fn float(&self, name: &str, otherwise: f32) -> f32 {
        match self.attributes.get(name) {
            Some(&Attribute::Float(value)) => value,
            _ => otherwise,
        }
    }

    pub(crate) fn text<'a>(&'a self, name: &str, otherwise: &'a str) -> &'a str {
        match self.attributes.get(name) {
            Some(Attribute::Text(value)) => value,
            _ => otherwise,
        }
    }

    pub(crate) fn ints(&self, name: &str) -> Option<&[i64]> {
        match self.attributes.get(name) {
            Some(Attribute::Ints(values)) => Some(values),
            _ => None,
        }
    }

    pub(crate) fn floats(&self, name: &str) -> Option<&[f32]> {
        match self.attributes.get(name) {
            Some(Attribute::Floats(values)) => Some(values),
            _ => None,
        }
    }

    pub(crate) fn texts(&self, name: &str) -> Option<&[String]> {
        match self.attributes.get(name) {
            Some(Attribute::Texts(values)) => Some(values),
            _ => None,
        }
    }

    pub(crate) fn tensor(&self, name: &str) -> Option<&Arc<Array>> {
        match self.attributes.get(name) {
            Some(Attribute::Tensor(value)) => Some(value),
            _ => None,
        }
    }

    pub(crate) fn graph(&self, name: &str) -> Option<&Arc<Scope>> {
        match self.attributes.get(name) {
            Some(Attribute::Graph(value)) => Some(value),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onnx::EntryProto;

    /// A model whose one constant, of two floats, is in a file of that name.
    fn keeping_weights_in(location: &str) -> Vec<u8> {
        let entry = |key: &str, value: &str| EntryProto { key: key.into(), value: value.into() };
        let external = vec![entry("location", location), entry("offset", "4"), entry("length", "8")];
        let tensor = TensorProto {
            dims: vec![2],
            element: 1,
            name: "w".into(),
            external,
            location: 1,
            ..TensorProto::default()
        };
        let graph = GraphProto { initializers: vec![tensor], ..GraphProto::default() };
        ModelProto { graph: Some(graph), ..ModelProto::default() }.encode_to_vec()
    }

    #[test]
    fn weights_next_to_the_model_are_read_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let numbers = [0.0_f32, 1.0, 2.0].map(f32::to_le_bytes).concat();
        std::fs::write(folder.path().join("w.bin"), &numbers).unwrap();
        std::fs::create_dir(folder.path().join("inner")).unwrap();
        let read = |location: &str| OnnxModel::decode(&keeping_weights_in(location), Some(folder.path()));
        let model = read("w.bin").unwrap();
        assert_eq!(model.constants().next().unwrap().1.to_floats()[..], [1.0, 2.0]);
        for outside in ["", "../w.bin", "/dev/zero", "inner/../w.bin"] {
            let text = read(outside).unwrap_err().to_string();
            assert!(text.contains("not in its folder"), "{text}");
        }
        assert!(read("inner").unwrap_err().to_string().contains("not a plain file"));
        assert!(matches!(read("absent"), Err(GraphError::Io { .. })));
        std::fs::write(folder.path().join("w.bin"), &numbers[..8]).unwrap();
        assert!(read("w.bin").unwrap_err().to_string().contains("ends behind its file"));
    }

    /// A file's functions call one another: themselves, or each the next one twice.
    #[test]
    fn functions_that_call_without_end_are_refused() {
        let call = |name: &str| NodeProto { operator: name.into(), domain: "own".into(), ..NodeProto::default() };
        let refused = |functions: Vec<FunctionProto>| {
            let graph = GraphProto { nodes: vec![call("f0")], ..GraphProto::default() };
            let model = ModelProto { graph: Some(graph), functions, ..ModelProto::default() };
            OnnxModel::decode(&model.encode_to_vec(), None).unwrap_err().to_string()
        };
        let function = |name: String, calls: Vec<NodeProto>| FunctionProto {
            name,
            domain: "own".into(),
            nodes: calls,
            ..FunctionProto::default()
        };
        let itself = refused(vec![function("f0".into(), vec![call("f0")])]);
        assert!(itself.contains("functions call one another too deep"), "{itself}");
        let twice = |at: usize| function(format!("f{at}"), vec![call(&format!("f{}", at + 1)); 2]);
        let each = refused((0..40).map(twice).collect());
        assert!(each.contains("functions are called too often"), "{each}");
    }

    #[test]
    fn what_is_no_model_is_refused() {
        assert!(matches!(OnnxModel::decode(b"PK\x03\x04 not onnx", None), Err(GraphError::NotOnnx(_))));
        assert!(matches!(OnnxModel::decode(b"", None), Err(GraphError::NotOnnx(_))));
    }
}
