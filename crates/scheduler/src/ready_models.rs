//! Models that want to run, in the order of some key.
//!
//! A model stands here once, however many devices hold it; who holds what is in `Queues`. From the first model on, a
//! device takes the first that it holds, and a model the first free device that holds it. Where models are on every
//! device that is the very first; where they are on one in so many, so many are looked at on average.

use crate::bits::DeviceSet;
use crate::queues::Queues;
use crate::table::grown;
use base::{DeviceId, ModelId};
use std::collections::BTreeSet;

#[derive(Clone, Debug)]
pub(crate) struct ReadyModels<K> {
    /// By model.
    keys: Vec<Option<K>>,
    list: BTreeSet<(K, ModelId)>,
}

impl<K: Copy + Ord> Default for ReadyModels<K> {
    fn default() -> Self {
        Self { keys: Vec::new(), list: BTreeSet::new() }
    }
}

impl<K: Copy + Ord> ReadyModels<K> {
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Takes a model off, or changes its key.
    pub fn set(&mut self, model: ModelId, key: Option<K>) {
        if let Some(before) = std::mem::replace(grown(&mut self.keys, model.index()), key) {
            self.list.remove(&(before, model));
        }
        if let Some(key) = key {
            self.list.insert((key, model));
        }
    }

    /// The models that a device holds, in their order.
    pub fn on<'a>(&'a self, queues: &'a Queues, device: DeviceId) -> impl Iterator<Item = (K, ModelId)> + use<'a, K> {
        self.list.iter().copied().filter(move |&(_, model)| queues.holds(device, model))
    }

    /// The first model that a device can run.
    pub fn first(&self, queues: &Queues, device: DeviceId) -> Option<(K, ModelId)> {
        self.on(queues, device).next()
    }

    /// All of them, in their order.
    pub fn models(&self) -> impl Iterator<Item = ModelId> {
        self.list.iter().map(|&(_, model)| model)
    }

    /// The first model that one of these devices can run, with the lowest-numbered of them.
    pub fn first_pair(&self, queues: &Queues, devices: &DeviceSet) -> Option<(ModelId, DeviceId)> {
        if devices.is_empty() {
            return None;
        }
        self.list.iter().find_map(|&(_, model)| Some((model, queues.devices_of(model).common(devices).next()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICES: [DeviceId; 2] = [DeviceId(0), DeviceId(1)];

    #[test]
    fn a_device_sees_what_it_holds_and_a_model_where_it_is() {
        let (mut ready, mut queues) = (ReadyModels::<u32>::default(), Queues::default());
        DEVICES.iter().for_each(|&device| queues.add_device(device));
        for model in (0..2).map(ModelId) {
            queues.add_model(model);
        }
        let mut free = DeviceSet::default();
        DEVICES.iter().for_each(|&device| free.insert(device));
        DEVICES.iter().for_each(|&device| queues.loaded(ModelId(0), device));
        queues.loaded(ModelId(1), DEVICES[1]);
        ready.set(ModelId(0), Some(5));
        ready.set(ModelId(1), Some(3));
        assert_eq!(ready.first(&queues, DEVICES[0]), Some((5, ModelId(0))));
        assert_eq!(ready.first(&queues, DEVICES[1]), Some((3, ModelId(1))));
        assert_eq!(ready.first_pair(&queues, &free), Some((ModelId(1), DEVICES[1])));
        free.remove(DEVICES[1]);
        assert_eq!(ready.first_pair(&queues, &free), Some((ModelId(0), DEVICES[0])));
        ready.set(ModelId(0), None);
        assert_eq!((ready.first(&queues, DEVICES[0]), ready.first_pair(&queues, &free)), (None, None));
        assert!(!ready.is_empty());
    }
}
