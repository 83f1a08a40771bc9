//! How much memory there is for answers, in Triton's words.

use crate::bytes::ByteSize;
use anyhow::{Result, anyhow, bail, ensure};

/// The bytes for answers that are kept: what `--cache-config` says, of which there may be several, or
/// `--response-cache-byte-size`, Triton's older flag for the same. 0 keeps none.
pub fn cache_bytes(configs: &[String], byte_size: Option<ByteSize>) -> Result<u64> {
    let mut size = byte_size;
    for config in configs {
        let wrong =
            |reason: &str| anyhow!("--cache-config {config}: {reason}; write local,size=BYTES, as in local,size=64MiB");
        let (cache, setting) = config.split_once(',').ok_or_else(|| wrong("there is no size"))?;
        if cache != "local" {
            bail!(wrong(&format!("there is no cache {cache:?} here, only one in the server's own memory")));
        }
        let (key, value) = setting.split_once('=').ok_or_else(|| wrong(&format!("{setting:?} sets nothing")))?;
        ensure!(key == "size", wrong(&format!("{key:?} isn't known: the size is all that is chosen")));
        ensure!(byte_size.is_none(), "--cache-config and --response-cache-byte-size say the same: give one of them");
        ensure!(size.is_none(), wrong("the size is given twice"));
        size = Some(value.parse().map_err(|reason: String| wrong(&reason))?);
    }
    Ok(size.map_or(0, |size| size.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(configs: &[&str], byte_size: Option<u64>) -> Result<u64, String> {
        let configs: Vec<String> = configs.iter().map(|&config| config.to_owned()).collect();
        cache_bytes(&configs, byte_size.map(ByteSize)).map_err(|error| error.to_string())
    }

    #[test]
    fn tritons_flags_say_how_much_is_kept() {
        assert_eq!(read(&[], None), Ok(0));
        assert_eq!(read(&["local,size=1048576"], None), Ok(1 << 20));
        assert_eq!(read(&["local,size=64MiB"], None), Ok(64 << 20));
        assert_eq!(read(&["local,size=0"], None), Ok(0));
        assert_eq!(read(&[], Some(4096)), Ok(4096));
    }

    #[test]
    fn what_makes_no_sense_is_a_sentence() {
        let cases: [(&[&str], Option<u64>); 7] = [
            (&["local"], None),
            (&["redis,host=h"], None),
            (&["local,size"], None),
            (&["local,port=3"], None),
            (&["local,size=many"], None),
            (&["local,size=1", "local,size=2"], None),
            (&["local,size=1"], Some(1)),
        ];
        let said: Vec<String> = cases.iter().map(|(configs, size)| read(configs, *size).unwrap_err()).collect();
        expect_test::expect![[r#"
            --cache-config local: there is no size; write local,size=BYTES, as in local,size=64MiB
            --cache-config redis,host=h: there is no cache "redis" here, only one in the server's own memory; write local,size=BYTES, as in local,size=64MiB
            --cache-config local,size: "size" sets nothing; write local,size=BYTES, as in local,size=64MiB
            --cache-config local,port=3: "port" isn't known: the size is all that is chosen; write local,size=BYTES, as in local,size=64MiB
            --cache-config local,size=many: "many" is not a size: write a number and a unit, like 2GiB or 500MB; write local,size=BYTES, as in local,size=64MiB
            --cache-config local,size=2: the size is given twice; write local,size=BYTES, as in local,size=64MiB
            --cache-config and --response-cache-byte-size say the same: give one of them
        "#]].assert_eq(&(said.join("\n") + "\n"));
    }
}
