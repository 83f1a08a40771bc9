//! The bytes of requests and answers on either protocol: brought together, counted, compressed, written.

pub(crate) mod encoding;
pub(crate) mod gather;
pub(crate) mod hold;
pub(crate) mod pace;
pub(crate) mod payload;
