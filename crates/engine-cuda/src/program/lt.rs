//! Matrix products by cuBLASLt, with bias, activation and residual in its epilogue.
//!
//! cuBLASLt thinks in columns where plans think in rows: the product is turned, `out^T = b^T @ a^T`, so that its A is our `b` and its rows are our columns.

use super::launch::{Address, Memory};
use crate::toolkit::{Error, Toolkit, check_lt};
use cudarc::cublaslt::sys as lt;
use cudarc::driver::sys::CUstream;
use graph::plan::{Activation, Conv, DataType, Gemm, Precision, Step, Tensor};
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
    problem: Problem,
    algorithm: lt::cublasLtMatmulAlgo_t,
    pub(crate) workspace_bytes: usize,
}

struct Problem {
    description: lt::cublasLtMatmulDesc_t,
    a: lt::cublasLtMatrixLayout_t,
    b: lt::cublasLtMatrixLayout_t,
    c: lt::cublasLtMatrixLayout_t,
    d: lt::cublasLtMatrixLayout_t,
    alpha: f32,
    a_at: Address,
    b_at: Address,
    bias_at: Option<Address>,
    residual_at: Option<Address>,
    out_at: Address,
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

/// A step as the product that cuBLASLt is asked for. Where its epilogue doesn't have the activation, the product is without one, and the activation beside it
/// is to be applied behind it; that is possible because it is the last thing that happens to a result.
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

/// The products that cuBLASLt proposes, best guess first; none where it can't. See `split` for those whose name ends with `THEN_ACTIVATION`.
pub(crate) fn candidates(toolkit: &Toolkit, step: &Step, precision: Precision) -> Result<Vec<Product>, Error> {
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
                handle: toolkit.lt,
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
) -> Result<Option<(Problem, Vec<lt::cublasLtMatmulHeuristicResult_t>)>, Error> {
    let Some(problem) = propose_problem(step, precision)? else { return Ok(None) };
    let mut preference = std::ptr::null_mut();
    // SAFETY: a heuristic result is plain numbers, for which all zeros is valid.
    let mut found: Vec<lt::cublasLtMatmulHeuristicResult_t> = vec![unsafe { std::mem::zeroed() }; ALGORITHMS];
    let mut count = 0;
    // SAFETY: every description is alive, the array is as long as is said, and pointers are to live variables.
    let status = unsafe {
        check_lt("cublasLtMatmulPreferenceCreate", lt::cublasLtMatmulPreferenceCreate(&raw mut preference))?;
        let limit = WORKSPACE_BYTES as u64;
        let which = lt::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        lt::cublasLtMatmulPreferenceSetAttribute(preference, which, (&raw const limit).cast(), 8);
        let Problem { description, a, b, c, d, .. } = problem;
        let status = lt::cublasLtMatmulAlgoGetHeuristic(
            toolkit.lt,
            description,
            a,
            b,
            c,
            d,
            preference,
            ALGORITHMS as i32,
            found.as_mut_ptr(),
            &raw mut count,
        );
        lt::cublasLtMatmulPreferenceDestroy(preference);
        status
    };
    // A combination that isn't there is no error: others compute it.
    if status != lt::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
        return Ok(None);
    }
    found.truncate(count as usize);
    found.retain(|result| result.state == lt::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
    Ok(Some((problem, found)))
}

fn propose_problem(step: &Gemm, precision: Precision) -> Result<Option<Problem>, Error> {
    let rank = step.output.dims.len();
    let Some(batch) = rank.checked_sub(2).filter(|&batch| batch <= 1) else { return Ok(None) };
    let types = [&step.a, &step.b, &step.output].map(data_type);
    let [Some(a_type), Some(b_type), Some(out_type)] = types else { return Ok(None) };
    let Some(epilogue) = epilogue(step.activation, step.bias.is_some()) else { return Ok(None) };
    let (Some(a), Some(b), Some((false, out_pitch))) =
        (turned(&step.a, batch), turned(&step.b, batch), turned(&step.output, batch))
    else {
        return Ok(None);
    };
    let residual = step.residual.as_ref().map(|residual| turned(residual, batch));
    let residual_pitch = match residual {
        None => out_pitch,
        Some(Some((false, pitch))) => pitch,
        Some(_) => return Ok(None),
    };
    if a_type != b_type || step.bias.as_ref().is_some_and(|bias| bias.strides != [1]) {
        return Ok(None);
    }
    let (m, n, k) = (step.output.dims[batch] as u64, step.output.dims[batch + 1] as u64, step.a.dims[batch + 1] as u64);
    let compute = match (step.a.dtype, precision) {
        (DataType::Fp32, Precision::Tf32) => lt::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
        _ => lt::cublasComputeType_t::CUBLAS_COMPUTE_32F,
    };
    let mut description = std::ptr::null_mut();
    let batches = if batch == 1 { step.output.dims[0] } else { 1 };
    let layout = |kind, turned: bool, rows: u64, columns: u64, pitch: i64, tensor: &Tensor| {
        let mut layout = std::ptr::null_mut();
        let (rows, columns) = if turned { (columns, rows) } else { (rows, columns) };
        let (count, stride) = (batches as i32, if batch == 1 { tensor.strides[0] as i64 } else { 0 });
        use lt::cublasLtMatrixLayoutAttribute_t as Attribute;
        // SAFETY: values are alive and as long as is said.
        unsafe {
            check_lt(
                "cublasLtMatrixLayoutCreate",
                lt::cublasLtMatrixLayoutCreate(&raw mut layout, kind, rows, columns, pitch),
            )?;
            lt::cublasLtMatrixLayoutSetAttribute(
                layout,
                Attribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                (&raw const count).cast(),
                4,
            );
            lt::cublasLtMatrixLayoutSetAttribute(
                layout,
                Attribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                (&raw const stride).cast(),
                8,
            );
        }
        Ok::<_, Error>(layout)
    };
    // SAFETY: the pointer is to a live variable.
    check_lt("cublasLtMatmulDescCreate", unsafe {
        lt::cublasLtMatmulDescCreate(&raw mut description, compute, lt::cudaDataType_t::CUDA_R_32F)
    })?;
    use lt::cublasLtMatmulDescAttributes_t as Attribute;
    set(description, Attribute::CUBLASLT_MATMUL_DESC_TRANSA, i32::from(b.0));
    set(description, Attribute::CUBLASLT_MATMUL_DESC_TRANSB, i32::from(a.0));
    set(description, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue as u32);
    if let Some(bias) = &step.bias {
        let Some(kind) = data_type(bias) else { return Ok(None) };
        set(description, Attribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, kind as u32);
    }
    Ok(Some(Problem {
        description,
        a: layout(b_type, b.0, n, k, b.1, &step.b)?,
        b: layout(a_type, a.0, k, m, a.1, &step.a)?,
        c: layout(out_type, false, n, m, residual_pitch, step.residual.as_ref().unwrap_or(&step.output))?,
        d: layout(out_type, false, n, m, out_pitch, &step.output)?,
        alpha: step.alpha,
        a_at: (&step.b).into(),
        b_at: (&step.a).into(),
        bias_at: step.bias.as_ref().map(Address::from),
        residual_at: step.residual.as_ref().map(Address::from),
        out_at: (&step.output).into(),
    }))
}

fn set<T>(description: lt::cublasLtMatmulDesc_t, attribute: lt::cublasLtMatmulDescAttributes_t, value: T) {
    // SAFETY: the value is alive and its size is said.
    let _ = unsafe {
        lt::cublasLtMatmulDescSetAttribute(description, attribute, (&raw const value).cast(), size_of::<T>())
    };
}

impl Product {
    pub(crate) fn enqueue(&self, stream: CUstream, memory: &Memory<'_>) -> Result<(), Error> {
        let problem = &self.problem;
        if let Some(bias) = problem.bias_at {
            set(
                problem.description,
                lt::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                memory.at(bias),
            );
        }
        let pointer = |at: Address| memory.at(at) as *mut c_void;
        let beta: f32 = if problem.residual_at.is_some() { 1.0 } else { 0.0 };
        let c = problem.residual_at.map_or(pointer(problem.out_at), pointer);
        // SAFETY: the descriptions live as long as this; addresses are those of the memory that the caller vouches for; the scratch memory is as large as the
        // program said that it has to be.
        check_lt("cublasLtMatmul", unsafe {
            lt::cublasLtMatmul(
                self.handle,
                problem.description,
                (&raw const problem.alpha).cast(),
                pointer(problem.a_at),
                problem.a,
                pointer(problem.b_at),
                problem.b,
                (&raw const beta).cast(),
                c,
                problem.c,
                pointer(problem.out_at),
                problem.d,
                &raw const self.algorithm,
                memory.scratch as *mut c_void,
                self.workspace_bytes,
                stream.cast(),
            )
        })
    }
}

impl Drop for Problem {
    fn drop(&mut self) {
        // SAFETY: all were created with it and nobody else has them.
        unsafe {
            lt::cublasLtMatmulDescDestroy(self.description);
            for layout in [self.a, self.b, self.c, self.d] {
                lt::cublasLtMatrixLayoutDestroy(layout);
            }
        }
    }
}
