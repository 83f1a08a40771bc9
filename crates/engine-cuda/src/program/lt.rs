//! Matrix products by cuBLASLt, with bias, activation and residual in its epilogue.
//!
//! cuBLASLt thinks in columns where plans think in rows: the product is turned, `out^T = b^T @ a^T`, so that its A is
//! our `b` and its rows are our columns.

mod handles;

use super::launch::{Address, ProgramMemory};
use crate::toolkit::{CudaError, Toolkit, check_lt};
use cudarc::cublaslt::sys as lt;
use cudarc::driver::sys::CUstream;
use graph::plan::{Activation, Conv, DataType, Gemm, Precision, Step, Tensor};
use handles::{Description, MatrixLayout, Preference};
use std::ffi::c_void;

/// Scratch memory that an algorithm may want.
const WORKSPACE_BYTES: usize = 32 << 20;

/// How many algorithms are measured.
const ALGORITHMS: usize = 8;

/// What the names of products end with whose activation is a kernel of ours behind them.
pub(crate) const THEN_ACTIVATION: &str = " + activation";

/// A product with a chosen algorithm.
pub(crate) struct Product {
    pub(crate) name: String,
    handle: lt::cublasLtHandle_t,
    problem: LtProblem,
    algorithm: lt::cublasLtMatmulAlgo_t,
    pub(crate) workspace_bytes: usize,
}

/// A product as cuBLASLt is told of it.
struct LtProblem {
    description: Description,
    a: MatrixLayout,
    b: MatrixLayout,
    c: MatrixLayout,
    d: MatrixLayout,
    alpha: f32,
    a_at: Address,
    b_at: Address,
    bias_at: Option<Address>,
    residual_at: Option<Address>,
    out_at: Address,
}

/// What cuBLASLt is to be told.
#[derive(Clone, PartialEq, Debug)]
struct LtRequest {
    compute: lt::cublasComputeType_t,
    epilogue: lt::cublasLtEpilogue_t,
    bias: Option<lt::cudaDataType_t>,
    /// Whether its A and its B are to be transposed.
    transposed: [bool; 2],
    /// Its A, B, C and D.
    matrices: [Matrix; 4],
}

/// A matrix by columns, or `count` of them with `stride` elements from one to the next.
#[derive(Clone, PartialEq, Debug)]
struct Matrix {
    kind: lt::cudaDataType_t,
    rows: u64,
    columns: u64,
    pitch: i64,
    count: i32,
    stride: i64,
}

// SAFETY: the descriptions are only read after they were made, and are used by one thread at a time.
unsafe impl Send for Product {}
// SAFETY: as above; `enqueue` sets the bias' address, and is called by one thread at a time for each program.
unsafe impl Sync for Product {}

/// A convolution with one tap is a product, where places lie at equal distances.
pub(crate) fn as_product(step: &Conv) -> Option<Gemm> {
    let one_tap = step.window.kernel == [1, 1] && step.window.pads_before == [0, 0] && step.window.pads_after == [0, 0];
    if !one_tap || step.window.strides != [1, 1] || step.groups != 1 {
        return None;
    }
    let rows = |image: &Tensor| {
        let [n, c, h, w] = image.dims[..] else { return None };
        let s = &image.strides;
        let pitch = if w > 1 {
            s[3]
        } else if h > 1 {
            s[2]
        } else {
            s[0]
        };
        let in_line = (h == 1 || s[2] == pitch * w as isize) && (n == 1 || s[0] == pitch * (h * w) as isize);
        in_line.then(|| Tensor { dims: vec![n * h * w, c], strides: vec![pitch, s[1]], ..image.clone() })
    };
    let weight = &step.weight;
    Some(Gemm {
        a: rows(&step.input)?,
        b: Tensor {
            dims: vec![weight.dims[1], weight.dims[0]],
            strides: vec![weight.strides[1], weight.strides[0]],
            ..weight.clone()
        },
        bias: step.bias.clone(),
        residual: match &step.residual {
            Some(residual) => Some(rows(residual)?),
            None => None,
        },
        output: rows(&step.output)?,
        alpha: 1.0,
        activation: step.activation,
    })
}

/// A step as the product that cuBLASLt is asked for. Where its epilogue doesn't have the activation, the product is
/// without one, and the activation comes with it is to be applied behind it; that is possible because it is the last
/// thing that happens to a result.
pub(crate) fn split(step: &Step) -> Option<(Gemm, Option<Activation>)> {
    let mut product = match step {
        Step::Gemm(gemm) => gemm.clone(),
        Step::Conv(conv) => as_product(conv)?,
        _ => return None,
    };
    data_type(&product.output)?;
    let left = match epilogue(product.activation, product.bias.is_some()) {
        Some(_) => None,
        None => Some(std::mem::replace(&mut product.activation, Activation::None)),
    };
    Some((product, left))
}

fn data_type(tensor: &Tensor) -> Option<lt::cudaDataType_t> {
    match tensor.dtype {
        DataType::Fp16 => Some(lt::cudaDataType_t::CUDA_R_16F),
        DataType::Fp32 => Some(lt::cudaDataType_t::CUDA_R_32F),
        _ => None,
    }
}

fn epilogue(activation: Activation, bias: bool) -> Option<lt::cublasLtEpilogue_t> {
    use lt::cublasLtEpilogue_t as Epilogue;
    Some(match (activation, bias) {
        (Activation::None, false) => Epilogue::CUBLASLT_EPILOGUE_DEFAULT,
        (Activation::None, true) => Epilogue::CUBLASLT_EPILOGUE_BIAS,
        (Activation::Relu, false) => Epilogue::CUBLASLT_EPILOGUE_RELU,
        (Activation::Relu, true) => Epilogue::CUBLASLT_EPILOGUE_RELU_BIAS,
        (Activation::GeluTanh, false) => Epilogue::CUBLASLT_EPILOGUE_GELU,
        (Activation::GeluTanh, true) => Epilogue::CUBLASLT_EPILOGUE_GELU_BIAS,
        _ => return None,
    })
}

/// A matrix of a plan as cuBLASLt sees it turned: whether it has to be transposed, and its leading dimension.
fn turned(tensor: &Tensor, batch: usize) -> Option<(bool, i64)> {
    let (rows, columns) = (tensor.dims[batch], tensor.dims[batch + 1]);
    let (down, across) = (tensor.strides[batch], tensor.strides[batch + 1]);
    if (across == 1 || columns == 1) && (rows == 1 || down >= columns as isize) {
        return Some((false, if rows == 1 { columns as i64 } else { down as i64 }));
    }
    if (down == 1 || rows == 1) && (columns == 1 || across >= rows as isize) {
        return Some((true, if columns == 1 { rows as i64 } else { across as i64 }));
    }
    None
}

/// The products that cuBLASLt proposes, best guess first; none where it can't. See `split` for those whose name ends
/// with `THEN_ACTIVATION`.
pub(crate) fn candidates(toolkit: &Toolkit, step: &Step, precision: Precision) -> Result<Vec<Product>, CudaError> {
    let Some((step, left)) = split(step) else { return Ok(Vec::new()) };
    let Some((problem, found)) = propose(toolkit, &step, precision)? else { return Ok(Vec::new()) };
    let end = if left.is_some() { THEN_ACTIVATION } else { "" };
    let mut all = Vec::new();
    for (rank, result) in found.iter().enumerate() {
        let problem = match rank {
            0 => None,
            _ => propose_problem(&step, precision)?,
        };
        all.push((rank, result, problem));
    }
    let mut first = Some(problem);
    Ok(all
        .into_iter()
        .filter_map(|(rank, result, problem)| {
            Some(Product {
                name: format!("cublaslt {rank}{end}"),
                handle: toolkit.lt.0,
                problem: problem.or_else(|| first.take())?,
                algorithm: result.algo,
                workspace_bytes: result.workspaceSize,
            })
        })
        .collect())
}

fn propose(
    toolkit: &Toolkit,
    step: &Gemm,
    precision: Precision,
) -> Result<Option<(LtProblem, Vec<lt::cublasLtMatmulHeuristicResult_t>)>, CudaError> {
    let Some(problem) = propose_problem(step, precision)? else { return Ok(None) };
    let preference = Preference::new(WORKSPACE_BYTES)?;
    // SAFETY: a heuristic result is plain numbers, for which all zeros is valid.
    let mut found: Vec<lt::cublasLtMatmulHeuristicResult_t> = vec![unsafe { std::mem::zeroed() }; ALGORITHMS];
    let mut count = 0;
    // SAFETY: every description is alive, the array is as long as is said, and pointers are to live variables.
    let status = unsafe {
        lt::cublasLtMatmulAlgoGetHeuristic(
            toolkit.lt.0,
            problem.description.raw(),
            problem.a.raw(),
            problem.b.raw(),
            problem.c.raw(),
            problem.d.raw(),
            preference.raw(),
            ALGORITHMS as i32,
            found.as_mut_ptr(),
            &raw mut count,
        )
    };
    // A combination that isn't there is no error: others compute it.
    if status != lt::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
        return Ok(None);
    }
    found.truncate(count as usize);
    found.retain(|result| result.state == lt::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
    Ok(Some((problem, found)))
}

fn propose_problem(step: &Gemm, precision: Precision) -> Result<Option<LtProblem>, CudaError> {
    wanted(step, precision).map(|wanted| LtProblem::new(step, &wanted)).transpose()
}

/// The product in cuBLASLt's words; `None` where it has none for it.
fn wanted(step: &Gemm, precision: Precision) -> Option<LtRequest> {
    let batch = step.output.dims.len().checked_sub(2).filter(|&batch| batch <= 1)?;
    let (a_type, b_type, out_type) = (data_type(&step.a)?, data_type(&step.b)?, data_type(&step.output)?);
    let ((a_transposed, a_pitch), (b_transposed, b_pitch)) = (turned(&step.a, batch)?, turned(&step.b, batch)?);
    let residual = step.residual.as_ref().unwrap_or(&step.output);
    let upright = |tensor: &Tensor| turned(tensor, batch).filter(|(transposed, _)| !transposed).map(|(_, pitch)| pitch);
    if a_type != b_type || step.bias.as_ref().is_some_and(|bias| bias.strides != [1]) {
        return None;
    }
    let bias = match &step.bias {
        None => None,
        Some(bias) => Some(data_type(bias)?),
    };
    let (m, n, k) = (step.output.dims[batch] as u64, step.output.dims[batch + 1] as u64, step.a.dims[batch + 1] as u64);
    let count = if batch == 1 { step.output.dims[0] as i32 } else { 1 };
    let matrix = |kind, (rows, columns), pitch, tensor: &Tensor| {
        let stride = if batch == 1 { tensor.strides[0] as i64 } else { 0 };
        Matrix { kind, rows, columns, pitch, count, stride }
    };
    Some(LtRequest {
        compute: match (step.a.dtype, precision) {
            (DataType::Fp32, Precision::Tf32) => lt::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
            _ => lt::cublasComputeType_t::CUBLAS_COMPUTE_32F,
        },
        epilogue: epilogue(step.activation, step.bias.is_some())?,
        bias,
        transposed: [b_transposed, a_transposed],
        matrices: [
            matrix(b_type, if b_transposed { (k, n) } else { (n, k) }, b_pitch, &step.b),
            matrix(a_type, if a_transposed { (m, k) } else { (k, m) }, a_pitch, &step.a),
            matrix(out_type, (n, m), upright(residual)?, residual),
            matrix(out_type, (n, m), upright(&step.output)?, &step.output),
        ],
    })
}

impl Matrix {
    fn layout(&self) -> Result<MatrixLayout, CudaError> {
        use lt::cublasLtMatrixLayoutAttribute_t as Attribute;
        let layout = MatrixLayout::new(self.kind, self.rows, self.columns, self.pitch)?;
        layout.set(Attribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, self.count)?;
        layout.set(Attribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, self.stride)?;
        Ok(layout)
    }
}

impl LtProblem {
    fn new(step: &Gemm, wanted: &LtRequest) -> Result<Self, CudaError> {
        use lt::cublasLtMatmulDescAttributes_t as Attribute;
        let description = Description::new(wanted.compute)?;
        let [a_transposed, b_transposed] = wanted.transposed;
        description.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, i32::from(a_transposed))?;
        description.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, i32::from(b_transposed))?;
        description.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, wanted.epilogue as u32)?;
        if let Some(kind) = wanted.bias {
            description.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, kind as u32)?;
        }
        let [a, b, c, d] = &wanted.matrices;
        Ok(Self {
            description,
            a: a.layout()?,
            b: b.layout()?,
            c: c.layout()?,
            d: d.layout()?,
            alpha: step.alpha,
            a_at: (&step.b).into(),
            b_at: (&step.a).into(),
            bias_at: step.bias.as_ref().map(Address::from),
            residual_at: step.residual.as_ref().map(Address::from),
            out_at: (&step.output).into(),
        })
    }
}

impl Product {
    pub(crate) fn enqueue(&self, stream: CUstream, memory: &ProgramMemory<'_>) -> Result<(), CudaError> {
        let problem = &self.problem;
        if let Some(bias) = problem.bias_at {
            let pointer = lt::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER;
            problem.description.set(pointer, memory.at(bias))?;
        }
        let pointer = |at: Address| memory.at(at) as *mut c_void;
        let beta: f32 = if problem.residual_at.is_some() { 1.0 } else { 0.0 };
        let c = problem.residual_at.map_or(pointer(problem.out_at), pointer);
        // SAFETY: the descriptions live as long as this; addresses are those of the memory that the caller vouches for;
        // the scratch memory is as large as the program said that it has to be.
        check_lt("cublasLtMatmul", unsafe {
            lt::cublasLtMatmul(
                self.handle,
                problem.description.raw(),
                (&raw const problem.alpha).cast(),
                pointer(problem.a_at),
                problem.a.raw(),
                pointer(problem.b_at),
                problem.b.raw(),
                (&raw const beta).cast(),
                c,
                problem.c.raw(),
                pointer(problem.out_at),
                problem.d.raw(),
                &raw const self.algorithm,
                memory.scratch as *mut c_void,
                self.workspace_bytes,
                stream.cast(),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use graph::plan::TensorPlace;

    fn tensor(dims: &[usize], strides: &[isize]) -> Tensor {
        let (dims, strides) = (dims.to_vec(), strides.to_vec());
        Tensor { dtype: DataType::Fp32, dims, strides, place: TensorPlace::Workspace, offset: 0 }
    }

    /// 4 by 8 times 8 by 16, all by rows.
    fn product() -> Gemm {
        Gemm {
            a: tensor(&[4, 8], &[8, 1]),
            b: tensor(&[8, 16], &[16, 1]),
            bias: Some(tensor(&[16], &[1])),
            residual: None,
            output: tensor(&[4, 16], &[16, 1]),
            alpha: 1.0,
            activation: Activation::Relu,
        }
    }

    /// Rows, columns, pitch, count, stride.
    fn numbers(matrix: &Matrix) -> (u64, u64, i64, i32, i64) {
        (matrix.rows, matrix.columns, matrix.pitch, matrix.count, matrix.stride)
    }

    #[test]
    fn a_product_by_rows_is_one_by_columns_with_its_factors_exchanged() {
        let told = wanted(&product(), Precision::Tf32).unwrap();
        assert_eq!(told.compute, lt::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32);
        assert_eq!(told.epilogue, lt::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_RELU_BIAS);
        assert_eq!(told.bias, Some(lt::cudaDataType_t::CUDA_R_32F));
        assert_eq!(told.transposed, [false, false]);
        let out = (16, 4, 16, 1, 0);
        assert_eq!(told.matrices.each_ref().map(numbers), [(16, 8, 16, 1, 0), (8, 4, 8, 1, 0), out, out]);
        let exact = wanted(&product(), Precision::F32).unwrap();
        assert_eq!(exact.compute, lt::cublasComputeType_t::CUBLAS_COMPUTE_32F);
    }

    #[test]
    fn factors_by_columns_are_transposed() {
        let told = wanted(&Gemm { b: tensor(&[8, 16], &[1, 8]), ..product() }, Precision::F32).unwrap();
        assert_eq!(told.transposed, [true, false]);
        assert_eq!(numbers(&told.matrices[0]), (8, 16, 8, 1, 0));
        let told = wanted(&Gemm { a: tensor(&[4, 8], &[1, 4]), ..product() }, Precision::F32).unwrap();
        assert_eq!(told.transposed, [false, true]);
        assert_eq!(numbers(&told.matrices[1]), (4, 8, 4, 1, 0));
    }

    #[test]
    fn a_batch_has_strides_and_a_residual_its_own_pitch() {
        let step = Gemm {
            a: tensor(&[3, 4, 8], &[32, 8, 1]),
            b: tensor(&[3, 8, 16], &[0, 16, 1]),
            residual: Some(tensor(&[3, 4, 16], &[80, 20, 1])),
            output: tensor(&[3, 4, 16], &[64, 16, 1]),
            ..product()
        };
        let told = wanted(&step, Precision::F32).unwrap();
        let expected = [(16, 8, 16, 3, 0), (8, 4, 8, 3, 32), (16, 4, 20, 3, 80), (16, 4, 16, 3, 64)];
        assert_eq!(told.matrices.each_ref().map(numbers), expected);
    }

    #[test]
    fn what_cublaslt_has_no_words_for_is_left_to_others() {
        let typed = |dtype, tensor: Tensor| Tensor { dtype, ..tensor };
        let refused = [
            Gemm { activation: Activation::Silu, ..product() },
            Gemm { bias: Some(tensor(&[16], &[2])), ..product() },
            Gemm { bias: Some(typed(DataType::Int64, tensor(&[16], &[1]))), ..product() },
            Gemm { a: typed(DataType::Fp16, product().a), ..product() },
            Gemm { output: tensor(&[4, 16], &[1, 4]), ..product() },
            Gemm { residual: Some(tensor(&[4, 16], &[1, 4])), ..product() },
            Gemm { output: tensor(&[2, 2, 4, 16], &[128, 64, 16, 1]), ..product() },
        ];
        for step in refused {
            assert_eq!(wanted(&step, Precision::F32), None, "{step:?}");
        }
    }
}
