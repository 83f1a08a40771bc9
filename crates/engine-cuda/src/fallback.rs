//! Who computes what a GPU can't: another engine, on the host's cores.

use base::ModelSignature;
use engine::{Engine, EngineError, Loaded, ModelSource, Prepared, Tensor};
use std::sync::Arc;

/// See the module.
#[derive(Clone, Default)]
pub enum Fallback {
    /// Nobody, as somebody wanted it.
    #[default]
    Off,
    /// Nobody, because the engine for it can't be used; the reason.
    Missing(String),
    /// That engine.
    Engine(Arc<dyn Engine>),
}

impl Fallback {
    /// The engine, if there is one.
    pub fn engine(&self) -> Option<&Arc<dyn Engine>> {
        match self {
            Self::Engine(engine) => Some(engine),
            Self::Off | Self::Missing(_) => None,
        }
    }

    /// A model that the GPU doesn't take for that reason.
    pub(crate) fn prepare(&self, source: &ModelSource, reason: String) -> Result<Arc<dyn Prepared>, EngineError> {
        let refused = |why: &str| EngineError::bad_model(&source.file, format!("{reason}; {why}"));
        match self {
            Self::Off => Err(EngineError::bad_model(&source.file, reason)),
            Self::Missing(missing) => Err(refused(&format!("nor can it be computed on the CPU: {missing}"))),
            Self::Engine(engine) => match engine.prepare(source) {
                Ok(inner) => Ok(Arc::new(OnHost { inner, reason })),
                Err(error) => Err(refused(&format!("nor does the CPU take it: {error}"))),
            },
        }
    }
}

/// A model that the host's cores compute, on the thread of the device.
struct OnHost {
    inner: Arc<dyn Prepared>,
    /// Why not the device.
    reason: String,
}

impl Prepared for OnHost {
    fn signature(&self) -> &ModelSignature {
        self.inner.signature()
    }

    fn weight_bytes(&self) -> u64 {
        self.inner.weight_bytes()
    }

    fn takes_any_batch(&self) -> bool {
        self.inner.takes_any_batch()
    }

    fn load(&self, device: u32) -> Result<Box<dyn Loaded>, EngineError> {
        self.inner.load(device)
    }

    fn load_in(&self, division: usize, device: u32) -> Result<Box<dyn Loaded>, EngineError> {
        self.inner.load_in(division, device)
    }

    fn expect(&self, shapes: &[&[i64]]) {
        self.inner.expect(shapes);
    }

    fn defaults(&self) -> Vec<Option<Tensor>> {
        self.inner.defaults()
    }

    fn not_on_device(&self) -> Option<&str> {
        Some(&self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::EmulatedEngine;

    fn source() -> ModelSource {
        ModelSource { name: "net".into(), file: "net/1/model.onnx".into(), ..ModelSource::default() }
    }

    #[test]
    fn a_refusal_says_every_reason() {
        let said = |fallback: Fallback| {
            let prepared = fallback.prepare(&source(), "GRU isn't there".into());
            prepared.err().map(|error| error.to_string())
        };
        assert_eq!(said(Fallback::Off).as_deref(), Some("net/1/model.onnx: GRU isn't there"));
        assert_eq!(
            said(Fallback::Missing("no library".into())).as_deref(),
            Some("net/1/model.onnx: GRU isn't there; nor can it be computed on the CPU: no library")
        );
        // An emulated device takes no model whose times aren't given.
        let both = said(Fallback::Engine(Arc::new(EmulatedEngine::default()))).unwrap();
        assert!(both.starts_with("net/1/model.onnx: GRU isn't there; nor does the CPU take it: "), "{both}");
    }

    #[test]
    fn what_the_host_computes_says_so() {
        let profile = base::LatencyProfile::linear(
            base::Duration::from_millis(1),
            base::Duration::ZERO,
            &[1],
            base::Duration::from_millis(1),
        );
        let emulated = Some(engine::Emulation { profile: profile.unwrap(), weight_bytes: 7 });
        let file = tempfile::NamedTempFile::new().unwrap();
        let source = ModelSource { emulated, file: file.path().into(), ..source() };
        let prepared = Fallback::Engine(Arc::new(EmulatedEngine::default())).prepare(&source, "why".into()).unwrap();
        assert_eq!((prepared.not_on_device(), prepared.weight_bytes()), (Some("why"), 7));
    }
}
