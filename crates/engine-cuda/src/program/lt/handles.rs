//! What cuBLASLt hands out, each destroyed with its owner.

use crate::toolkit::{CudaError, check_lt};
use cudarc::cublaslt::sys as lt;

/// How a product is computed: transpositions, epilogue, bias.
pub(super) struct Description(lt::cublasLtMatmulDesc_t);

impl Description {
    /// Factors of the product are 32-bit floats.
    pub(super) fn new(compute: lt::cublasComputeType_t) -> Result<Self, CudaError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is to a live variable.
        check_lt("cublasLtMatmulDescCreate", unsafe {
            lt::cublasLtMatmulDescCreate(&raw mut raw, compute, lt::cudaDataType_t::CUDA_R_32F)
        })?;
        Ok(Self(raw))
    }

    /// `T` must be the attribute's type, as cuBLASLt documents it.
    pub(super) fn set<T: Copy>(
        &self,
        attribute: lt::cublasLtMatmulDescAttributes_t,
        value: T,
    ) -> Result<(), CudaError> {
        // SAFETY: the description is alive, and so is the value, whose size is said.
        check_lt("cublasLtMatmulDescSetAttribute", unsafe {
            lt::cublasLtMatmulDescSetAttribute(self.0, attribute, (&raw const value).cast(), size_of::<T>())
        })
    }

    pub(super) fn raw(&self) -> lt::cublasLtMatmulDesc_t {
        self.0
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: it was created and is nobody else's.
        unsafe { lt::cublasLtMatmulDescDestroy(self.0) };
    }
}

/// How a matrix lies in memory.
pub(super) struct MatrixLayout(lt::cublasLtMatrixLayout_t);

impl MatrixLayout {
    /// By columns, `pitch` elements from one to the next.
    pub(super) fn new(kind: lt::cudaDataType_t, rows: u64, columns: u64, pitch: i64) -> Result<Self, CudaError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is to a live variable.
        check_lt("cublasLtMatrixLayoutCreate", unsafe {
            lt::cublasLtMatrixLayoutCreate(&raw mut raw, kind, rows, columns, pitch)
        })?;
        Ok(Self(raw))
    }

    /// `T` must be the attribute's type, as cuBLASLt documents it.
    pub(super) fn set<T: Copy>(
        &self,
        attribute: lt::cublasLtMatrixLayoutAttribute_t,
        value: T,
    ) -> Result<(), CudaError> {
        // SAFETY: the layout is alive, and so is the value, whose size is said.
        check_lt("cublasLtMatrixLayoutSetAttribute", unsafe {
            lt::cublasLtMatrixLayoutSetAttribute(self.0, attribute, (&raw const value).cast(), size_of::<T>())
        })
    }

    pub(super) fn raw(&self) -> lt::cublasLtMatrixLayout_t {
        self.0
    }
}

impl Drop for MatrixLayout {
    fn drop(&mut self) {
        // SAFETY: it was created and is nobody else's.
        unsafe { lt::cublasLtMatrixLayoutDestroy(self.0) };
    }
}

/// What an algorithm may need.
pub(super) struct Preference(lt::cublasLtMatmulPreference_t);

impl Preference {
    /// Algorithms with so much scratch memory at most.
    pub(super) fn new(workspace_bytes: usize) -> Result<Self, CudaError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is to a live variable.
        check_lt("cublasLtMatmulPreferenceCreate", unsafe { lt::cublasLtMatmulPreferenceCreate(&raw mut raw) })?;
        let preference = Self(raw);
        let limit = workspace_bytes as u64;
        let which = lt::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        // SAFETY: the preference is alive, and so is the limit, whose size is said.
        check_lt("cublasLtMatmulPreferenceSetAttribute", unsafe {
            lt::cublasLtMatmulPreferenceSetAttribute(preference.0, which, (&raw const limit).cast(), size_of::<u64>())
        })?;
        Ok(preference)
    }

    pub(super) fn raw(&self) -> lt::cublasLtMatmulPreference_t {
        self.0
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: it was created and is nobody else's.
        unsafe { lt::cublasLtMatmulPreferenceDestroy(self.0) };
    }
}
