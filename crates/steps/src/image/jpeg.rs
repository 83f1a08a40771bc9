//! JPEG files.

use super::decode::{Colours, unreadable};
use super::{Extent, LONGEST_SIDE};
use crate::StepError;
use crate::bound::Bound;
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

/// Scans of a progressive file, each of which goes over the whole picture: usual ones have ten.
const MOST_SCANS: usize = 64;
/// Pixels along the side of the largest block that is decoded at once: 8, sampled 4 times.
const BLOCK: usize = 32;
/// Bytes of a coefficient.
const COEFFICIENT: usize = 2;
/// Components of a picture, at most.
const COMPONENTS: usize = 4;

/// The picture in a file, in the order of its colours.
pub(super) fn decode(file: &[u8], colours: Colours, bound: &mut Bound) -> Result<(Extent, Vec<u8>), StepError> {
    let (space, channels) = match colours {
        Colours::Gray => (ColorSpace::Luma, 1),
        Colours::Rgb | Colours::Bgr => (ColorSpace::RGB, 3),
    };
    let options = DecoderOptions::default()
        .set_max_width(LONGEST_SIDE as usize)
        .set_max_height(LONGEST_SIDE as usize)
        .set_strict_mode(true)
        .jpeg_set_max_scans(MOST_SCANS)
        .jpeg_set_out_colorspace(space);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), options);
    decoder.decode_headers().map_err(|error| unreadable("JPEG", &error))?;
    let (width, height) = decoder.dimensions().unwrap_or_default();
    let extent = Extent { height, width, channels };
    // Of progressive files all coefficients are kept until the last scan.
    let blocks = |side: usize| side.next_multiple_of(BLOCK);
    bound.count((blocks(width) * blocks(height)).checked_mul(COMPONENTS * COEFFICIENT))?;
    let mut pixels = bound.filled(extent.elements().unwrap_or(usize::MAX), 0u8)?;
    decoder.decode_into(&mut pixels).map_err(|error| unreadable("JPEG", &error))?;
    if colours == Colours::Bgr {
        pixels.chunks_exact_mut(3).for_each(|pixel| pixel.swap(0, 2));
    }
    Ok((extent, pixels))
}
