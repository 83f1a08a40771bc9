//! Virtual time, modelled workers and network, faults, checkers, experiments.
