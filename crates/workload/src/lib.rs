//! Seeded arrival processes and trace readers.
