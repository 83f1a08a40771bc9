//! Models that want to run, in the order of some key, for each device those that it can run.
//!
//! A model that is on every device stands in one list for all; others stand in the lists of the devices that hold them. So
//! the usual case costs O(log M), whatever the number of devices.

use base::{DeviceId, ModelId};
use std::collections::BTreeSet;

#[derive(Clone, Copy, Debug)]
struct Listed<K> {
    key: K,
    everywhere: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Board<K> {
    /// Where each model stands.
    models: Vec<Option<Listed<K>>>,
    /// Models that are on every device.
    everywhere: BTreeSet<(K, ModelId)>,
    /// For each device the others that it holds; `None` where there is no device.
    devices: Vec<Option<BTreeSet<(K, ModelId)>>>,
    device_count: usize,
    /// How many models stand in the lists of devices.
    in_places: usize,
}

impl<K: Copy + Ord> Default for Board<K> {
    fn default() -> Self {
        Self { models: Vec::new(), everywhere: BTreeSet::new(), devices: Vec::new(), device_count: 0, in_places: 0 }
    }
}

impl<K: Copy + Ord> Board<K> {
    pub fn add_model(&mut self, model: ModelId) {
        if self.models.len() <= model.index() {
            self.models.resize_with(model.index() + 1, || None);
        }
    }

    /// Every model must have been taken off before.
    pub fn add_device(&mut self, device: DeviceId) {
        if self.devices.len() <= device.index() {
            self.devices.resize_with(device.index() + 1, || None);
        }
        self.devices[device.index()] = Some(BTreeSet::new());
        self.device_count += 1;
    }

    /// Every model must have been taken off before.
    pub fn remove_device(&mut self, device: DeviceId) {
        self.device_count -= usize::from(self.devices[device.index()].take().is_some());
    }

    pub fn device_count(&self) -> usize {
        self.device_count
    }

    /// Takes a model off, or changes its key. `devices` are those that hold it, the same as when it was put there.
    pub fn set(&mut self, model: ModelId, key: Option<K>, devices: &[DeviceId]) {
        match self.models[model.index()].take() {
            Some(Listed { key, everywhere: true }) => {
                self.everywhere.remove(&(key, model));
            }
            Some(Listed { key, everywhere: false }) => {
                self.in_places -= 1;
                for device in devices {
                    if let Some(list) = &mut self.devices[device.index()] {
                        list.remove(&(key, model));
                    }
                }
            }
            None => {}
        }
        let Some(key) = key.filter(|_| !devices.is_empty()) else { return };
        let everywhere = devices.len() == self.device_count;
        self.models[model.index()] = Some(Listed { key, everywhere });
        if everywhere {
            self.everywhere.insert((key, model));
            return;
        }
        self.in_places += 1;
        for device in devices {
            let list = self.devices[device.index()].as_mut().expect("models are held by devices that are there");
            list.insert((key, model));
        }
    }

    /// The first model that a device can run.
    pub fn first(&self, device: DeviceId) -> Option<(K, ModelId)> {
        let here = match &self.devices[device.index()] {
            Some(list) if self.in_places > 0 => list.first(),
            _ => None,
        };
        match (self.everywhere.first(), here) {
            (Some(everywhere), Some(here)) => Some(*everywhere.min(here)),
            (everywhere, here) => everywhere.or(here).copied(),
        }
    }

    /// The first of these devices that has a model to run.
    pub fn first_device(&self, devices: &BTreeSet<DeviceId>) -> Option<DeviceId> {
        if !self.everywhere.is_empty() {
            return devices.first().copied();
        }
        let wanted = |device: &DeviceId| matches!(&self.devices[device.index()], Some(list) if !list.is_empty());
        devices.iter().copied().filter(|_| self.in_places > 0).find(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICES: [DeviceId; 2] = [DeviceId(0), DeviceId(1)];

    fn board() -> Board<u32> {
        let mut board = Board::default();
        DEVICES.iter().for_each(|&device| board.add_device(device));
        (0..3).for_each(|model| board.add_model(ModelId(model)));
        board
    }

    #[test]
    fn a_device_sees_what_is_everywhere_and_what_is_on_it() {
        let mut board = board();
        board.set(ModelId(0), Some(5), &DEVICES);
        board.set(ModelId(1), Some(3), &DEVICES[1..]);
        assert_eq!(board.first(DEVICES[0]), Some((5, ModelId(0))));
        assert_eq!(board.first(DEVICES[1]), Some((3, ModelId(1))));
        board.set(ModelId(1), Some(7), &DEVICES[1..]);
        assert_eq!(board.first(DEVICES[1]), Some((5, ModelId(0))));
        board.set(ModelId(0), None, &DEVICES);
        assert_eq!(board.first(DEVICES[0]), None);
        assert_eq!(board.first_device(&BTreeSet::from(DEVICES)), Some(DEVICES[1]));
        board.set(ModelId(1), None, &DEVICES[1..]);
        assert_eq!(board.first_device(&BTreeSet::from(DEVICES)), None);
    }

    #[test]
    fn with_another_device_everywhere_means_something_else() {
        let mut board = board();
        board.set(ModelId(0), Some(5), &DEVICES);
        board.set(ModelId(0), None, &DEVICES);
        board.add_device(DeviceId(2));
        board.set(ModelId(0), Some(5), &DEVICES);
        assert_eq!(board.first(DeviceId(2)), None);
        board.set(ModelId(0), None, &DEVICES);
        board.remove_device(DeviceId(2));
        board.set(ModelId(0), Some(5), &DEVICES);
        assert_eq!(board.first_device(&BTreeSet::from(DEVICES)), Some(DEVICES[0]));
    }
}
