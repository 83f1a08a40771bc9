//! Triton's model repository on disk: layout, config.pbtxt, changes, cached profiles.
