//! PNG files.

use super::decode::{Colours, unreadable};
use super::{Extent, LONGEST_SIDE};
use crate::StepError;
use crate::bound::Bound;
use png::{ColorType, Decoder, Limits, Transformations};
use std::io::Cursor;

/// The picture in a file, in the order of its colours: 8 bits, the upper ones where there are 16, and what is
/// transparent has the colour that stands there.
pub(super) fn decode(file: &[u8], colours: Colours, bound: &mut Bound) -> Result<(Extent, Vec<u8>), StepError> {
    let mut decoder = Decoder::new_with_limits(Cursor::new(file), Limits { bytes: bound.left() });
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let (width, height) = decoder.read_header_info().map_err(|error| unreadable("PNG", &error))?.size();
    if i64::from(width.max(height)) > LONGEST_SIDE {
        let sentence = format!("the PNG file says {width} x {height} pixels, and sides have {LONGEST_SIDE} at most");
        return Err(StepError::TooLarge(sentence));
    }
    let channels = if colours == Colours::Gray { 1 } else { 3 };
    let extent = Extent { height: height as usize, width: width as usize, channels };
    // What is read has four channels at most.
    let largest = Extent { channels: 4, ..extent };
    bound.count(largest.elements())?;
    let mut reader = decoder.read_info().map_err(|error| unreadable("PNG", &error))?;
    let size = reader.output_buffer_size().unwrap_or(usize::MAX);
    let mut read = bound.filled(size, 0u8)?;
    let info = reader.next_frame(&mut read).map_err(|error| unreadable("PNG", &error))?;
    let samples = info.color_type.samples();
    read.truncate(info.buffer_size());
    let is_colour = matches!(info.color_type, ColorType::Rgb | ColorType::Rgba);
    // As it is, in most files.
    if info.color_type == ColorType::Rgb && colours == Colours::Rgb || samples == 1 && channels == 1 {
        return Ok((extent, read));
    }
    let mut pixels = bound.room(extent.elements().unwrap_or(usize::MAX))?;
    for pixel in read.chunks_exact(samples) {
        match (is_colour, colours) {
            (true, Colours::Rgb) => pixels.extend_from_slice(&pixel[..3]),
            (true, Colours::Bgr) => pixels.extend([pixel[2], pixel[1], pixel[0]]),
            (true, Colours::Gray) => pixels.push(luma(pixel)),
            (false, Colours::Gray) => pixels.push(pixel[0]),
            (false, _) => pixels.extend([pixel[0]; 3]),
        }
    }
    Ok((extent, pixels))
}

/// How bright a colour is: ITU-R BT.601, rounded.
fn luma(pixel: &[u8]) -> u8 {
    let [red, green, blue] = [pixel[0], pixel[1], pixel[2]].map(u32::from);
    ((red * 19_595 + green * 38_470 + blue * 7_471 + (1 << 15)) >> 16) as u8
}
