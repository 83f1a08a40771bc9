//! Who goes where: devices are dealt to cells at the start, and each model goes into one of them when it is published.
//! It moves to another when its own is short (`moves.rs`).

use crate::DeviceConfig;
use base::{Duration, LatencyProfile, ModelNumber};

/// Deals devices to so many cells: neighbours together, as evenly as possible. So many in a row are the shares of one
/// GPU and stay together, because they are divided otherwise together. A sentence if there are too few.
pub fn deal(devices: Vec<DeviceConfig>, shares: u32, cells: u32) -> Result<Vec<Vec<DeviceConfig>>, String> {
    let (shares, cells) = (shares.max(1) as usize, cells.max(1) as usize);
    let gpus = devices.len().div_ceil(shares);
    if gpus < cells {
        let each = if shares > 1 { "GPU, whose shares stay together" } else { "device" };
        return Err(format!("at most {gpus} can be made here, one for each {each}"));
    }
    let mut rest = devices.into_iter();
    let gpus_of = |cell: usize| gpus / cells + usize::from(cell < gpus % cells);
    Ok((0..cells).map(|cell| rest.by_ref().take(gpus_of(cell) * shares).collect()).collect())
}

/// What a model asks of the cell that it is in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelNeeds {
    pub pages: u32,
    /// What a request takes of a device.
    pub work: Duration,
}

impl ModelNeeds {
    /// Nobody knows yet how large its batches will be: the cheapest is as good a guess for one model as for another.
    pub fn new(pages: u32, profile: &LatencyProfile) -> Self {
        let each = profile.batches().iter().map(|batch| batch.median / u64::from(batch.batch));
        Self { pages, work: each.min().unwrap_or(Duration::ZERO) }
    }
}

/// What all models of a cell ask for: sums, so that a model that comes isn't compared with all that are there.
#[derive(Clone, Copy, Debug, Default)]
struct CellNeeds {
    pages: u64,
    work_nanos: u64,
}

impl CellNeeds {
    fn with(self, model: ModelNeeds) -> Self {
        let (pages, work_nanos) = (u64::from(model.pages), model.work.as_nanos());
        Self { pages: self.pages + pages, work_nanos: self.work_nanos + work_nanos }
    }

    fn without(self, model: ModelNeeds) -> Self {
        let (pages, work_nanos) = (u64::from(model.pages), model.work.as_nanos());
        Self { pages: self.pages - pages, work_nanos: self.work_nanos - work_nanos }
    }
}

/// What each cell has room for, and which models are there.
///
/// A model's number says where it is: with n cells, slot k of cell c is k * n + c among all. So nobody has to look it
/// up.
#[derive(Debug)]
pub(crate) struct Occupancy(Vec<CellOccupancy>);

#[derive(Debug)]
struct CellOccupancy {
    devices: u64,
    /// Of its devices together.
    pages: u64,
    /// Of its largest device.
    largest: u32,
    /// By slot in the cell, with the generation; `None` where they have gone.
    models: Vec<(u32, Option<ModelNeeds>)>,
    /// Numbers of models of which nothing is left, the next generation of them.
    free: Vec<ModelNumber>,
    /// What they ask for together.
    needed: CellNeeds,
}

impl Occupancy {
    pub fn new(cells: &[Vec<DeviceConfig>]) -> Self {
        Self(cells.iter().map(|devices| CellOccupancy::new(devices)).collect())
    }

    /// Finds the cell for a model, and its number.
    pub fn add(&mut self, needs: ModelNeeds) -> ModelNumber {
        let best = self.0.iter().enumerate().min_by_key(|(_, room)| room.rank(needs));
        self.add_to(best.map_or(0, |(cell, _)| cell), needs)
    }

    /// Puts a model into that cell; its number.
    pub fn add_to(&mut self, cell: usize, needs: ModelNeeds) -> ModelNumber {
        let cells = self.0.len();
        let room = &mut self.0[cell];
        let fresh = ModelNumber { slot: room.models.len() as u32, generation: 0 };
        let number = room.free.pop().unwrap_or(fresh);
        if number == fresh {
            room.models.push((0, None));
        }
        room.models[number.id().index()] = (number.generation, Some(needs));
        room.needed = room.needed.with(needs);
        among_all(cells, cell, number)
    }

    /// Nothing is left of the model that had this number in its last generation.
    pub fn give_back(&mut self, number: ModelNumber) {
        let (cell, local) = home(self.0.len(), number);
        self.0[cell].free.push(local);
    }

    /// What each cell has, where so many devices are there now.
    pub fn now(&self, devices: impl Iterator<Item = u32>) -> Vec<planner::cells::Room> {
        let now = |(room, devices): (&CellOccupancy, u32)| {
            let CellOccupancy { pages, largest, .. } = *room;
            planner::cells::Room { devices, pages, largest }
        };
        self.0.iter().zip(devices).map(now).collect()
    }

    /// The model is gone, and its room is others'.
    pub fn remove(&mut self, model: ModelNumber) {
        let (cell, local) = home(self.0.len(), model);
        let room = &mut self.0[cell];
        let there = room.models.get_mut(local.id().index()).filter(|there| there.0 == local.generation);
        if let Some(gone) = there.and_then(|there| there.1.take()) {
            room.needed = room.needed.without(gone);
        }
    }
}

impl CellOccupancy {
    fn new(devices: &[DeviceConfig]) -> Self {
        Self {
            devices: devices.len() as u64,
            pages: devices.iter().map(|device| u64::from(device.pages)).sum(),
            largest: devices.iter().map(|device| device.pages).max().unwrap_or(0),
            models: Vec::new(),
            free: Vec::new(),
            needed: CellNeeds::default(),
        }
    }

    /// How good a home it is, the lowest being the best: can a device hold the model at all; how many times over is the
    /// memory needed, which is no matter as long as all fit; what is asked of each device, if all models are equally
    /// popular.
    fn rank(&self, new: ModelNeeds) -> (bool, u64, u64) {
        let needed = self.needed.with(new);
        let thousandths = (needed.pages * 1000 / self.pages.max(1)).max(1000);
        (new.pages > self.largest, thousandths, needed.work_nanos / self.devices.max(1))
    }
}

/// Which of so many cells a model is in, and its number there.
pub(crate) fn home(cells: usize, model: ModelNumber) -> (usize, ModelNumber) {
    let ModelNumber { slot, generation } = model;
    let cells = cells as u32;
    ((slot % cells) as usize, ModelNumber { slot: slot / cells, generation })
}

/// The number among those of all cells of a model that has this one in its cell.
pub(crate) fn among_all(cells: usize, cell: usize, model: ModelNumber) -> ModelNumber {
    ModelNumber { slot: model.slot * cells as u32 + cell as u32, ..model }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices(pages: &[u32]) -> Vec<DeviceConfig> {
        let device = |(index, &pages): (usize, &u32)| DeviceConfig {
            name: format!("emulated:{index}"),
            index: index as u32,
            pages,
            pin: None,
            kind: 0,
            only_waits: true,
        };
        pages.iter().enumerate().map(device).collect()
    }

    fn dealt(count: usize, shares: u32, cells: u32) -> Vec<Vec<u32>> {
        let cells = deal(devices(&vec![1; count]), shares, cells).unwrap();
        cells.iter().map(|cell| cell.iter().map(|device| device.index).collect()).collect()
    }

    #[test]
    fn neighbours_come_together_and_no_cell_has_two_more_than_another() {
        assert_eq!(dealt(3, 1, 1), [vec![0, 1, 2]]);
        assert_eq!(dealt(5, 1, 2), [vec![0, 1, 2], vec![3, 4]]);
        assert_eq!(dealt(7, 1, 3), [vec![0, 1, 2], vec![3, 4], vec![5, 6]]);
        assert_eq!(dealt(2, 1, 0), [vec![0, 1]], "no number is one cell");
    }

    #[test]
    fn the_shares_of_a_gpu_stay_in_one_cell() {
        assert_eq!(dealt(6, 2, 2), [vec![0, 1, 2, 3], vec![4, 5]]);
    }

    #[test]
    fn more_cells_than_devices_are_a_sentence() {
        let refused = |shares| deal(devices(&[1; 4]), shares, 5).unwrap_err();
        assert_eq!(refused(1), "at most 4 can be made here, one for each device");
        assert_eq!(refused(2), "at most 2 can be made here, one for each GPU, whose shares stay together");
    }

    /// The cells that models of these pages and milliseconds go into, one after another.
    fn cells_of(occupancy: &mut Occupancy, models: &[(u32, u64)]) -> Vec<usize> {
        let cells = occupancy.0.len();
        let needs = |&(pages, millis): &(u32, u64)| ModelNeeds { pages, work: Duration::from_millis(millis) };
        models.iter().map(|model| home(cells, occupancy.add(needs(model))).0).collect()
    }

    #[test]
    fn as_long_as_all_fit_a_model_goes_where_the_least_is_asked_of_each_device() {
        let mut occupancy = Occupancy::new(&[devices(&[10]), devices(&[10])]);
        assert_eq!(cells_of(&mut occupancy, &[(1, 6), (5, 2), (1, 3), (1, 2), (1, 1)]), [0, 1, 1, 1, 0]);
        let mut occupancy = Occupancy::new(&[devices(&[10]), devices(&[10, 10])]);
        assert_eq!(cells_of(&mut occupancy, &[(1, 2), (1, 2), (1, 2)]), [1, 0, 1]);
    }

    #[test]
    fn where_memory_is_short_a_model_goes_where_the_most_is_left() {
        let mut occupancy = Occupancy::new(&[devices(&[10]), devices(&[10])]);
        assert_eq!(cells_of(&mut occupancy, &[(8, 1), (4, 9), (4, 9), (4, 9)]), [0, 1, 1, 0]);
    }

    #[test]
    fn a_large_model_goes_where_a_device_can_hold_it_however_crowded_that_is() {
        let mut occupancy = Occupancy::new(&[devices(&[4, 4, 4]), devices(&[8])]);
        assert_eq!(cells_of(&mut occupancy, &[(8, 1), (8, 1), (1, 1)]), [1, 1, 0]);
        let home = cells_of(&mut occupancy, &[(9, 1)]);
        assert_eq!(home, [0], "nobody can: it is refused when it is asked for, as with one cell");
    }

    #[test]
    fn a_model_that_goes_makes_room_at_once_and_gives_its_slot_back_when_nothing_is_left() {
        let mut occupancy = Occupancy::new(&[devices(&[10]), devices(&[10])]);
        let needs = |pages| ModelNeeds { pages, work: Duration::from_millis(u64::from(pages)) };
        let number = |slot, generation| ModelNumber { slot, generation };
        let first = occupancy.add(needs(9));
        occupancy.remove(first);
        occupancy.remove(number(77, 0));
        let numbers = [first, occupancy.add(needs(9)), occupancy.add(needs(1))];
        assert_eq!(numbers, [number(0, 0), number(2, 0), number(1, 0)]);
        let homes = numbers.map(|model| home(2, model));
        assert_eq!(homes, [(0, number(0, 0)), (0, number(1, 0)), (1, number(0, 0))]);
        assert!(homes.iter().zip(numbers).all(|(&(cell, local), all)| among_all(2, cell, local) == all));
        occupancy.give_back(number(0, 1));
        assert_eq!(occupancy.add_to(0, needs(1)), number(0, 1), "the slot, with another generation");
        assert_eq!(occupancy.add_to(0, needs(1)), number(4, 0));
        occupancy.remove(first);
        assert_eq!(occupancy.0[0].needed.pages, 11, "who had the slot before makes no room");
    }

    #[test]
    fn what_a_request_takes_is_its_part_of_the_cheapest_batch() {
        let millis = Duration::from_millis;
        let profile = LatencyProfile::linear(millis(1), millis(8), &[1, 4], Duration::ZERO).unwrap();
        assert_eq!(ModelNeeds::new(7, &profile).work, millis(3));
    }
}
