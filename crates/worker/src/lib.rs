//! Executors that follow windows strictly; pages; IO buffers.
