//! Where models come from, as `--model-repository` names it: a folder, or a bucket behind a URL.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A place that models come from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RepositorySource {
    /// A folder on this machine.
    Folder(PathBuf),
    /// A bucket, or a part of one.
    Bucket(Bucket),
}

/// A bucket in an object store, or the part of it below a prefix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bucket {
    /// As it was written, without a slash at the end.
    pub url: String,
    /// Whose store it is.
    pub kind: StoreKind,
    /// Where the store listens, if the URL says so: `http://localhost:9000`.
    pub endpoint: Option<String>,
    /// The storage account, if the URL says so; only Azure has them.
    pub account: Option<String>,
    /// The bucket's, or container's, name.
    pub bucket: String,
    /// The folder in it, without slashes at its ends; empty for the whole bucket.
    pub prefix: String,
}

/// Whose object store it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreKind {
    /// Amazon's, and everything that speaks its protocol: `s3://`.
    S3,
    /// Google's: `gs://`.
    Google,
    /// Microsoft's: `az://container`, or `as://account/container` as Triton writes it.
    Azure,
}

impl FromStr for RepositorySource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return match text {
                "" => Err("it is empty: name a folder, or a bucket as in s3://bucket/folder".to_owned()),
                _ => Ok(Self::Folder(PathBuf::from(text))),
            };
        };
        let rest = rest.trim_end_matches('/');
        let bucket = match scheme {
            "s3" => s3(rest),
            "gs" => plain(StoreKind::Google, rest),
            "az" => plain(StoreKind::Azure, rest),
            "as" => with_account(rest),
            _ => return Err(format!("{scheme}:// isn't known: use a folder, s3://, gs://, az:// or as://")),
        };
        let bucket = bucket.filter(|bucket| !bucket.bucket.is_empty());
        let mut bucket = bucket.ok_or_else(|| format!("{text:?} names no bucket: write {}", example(scheme)))?;
        if bucket.prefix.split('/').any(|part| matches!(part, "." | "..")) {
            return Err(format!("{text:?} has \".\" or \"..\" in it, which mean nothing in a bucket"));
        }
        text.trim_end_matches('/').clone_into(&mut bucket.url);
        Ok(Self::Bucket(bucket))
    }
}

fn example(scheme: &str) -> &'static str {
    match scheme {
        "s3" => "s3://bucket/folder or s3://host:port/bucket/folder",
        "gs" => "gs://bucket/folder",
        "as" => "as://account/container/folder",
        _ => "az://container/folder",
    }
}

fn plain(kind: StoreKind, rest: &str) -> Option<Bucket> {
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    Some(Bucket {
        url: String::new(),
        kind,
        endpoint: None,
        account: None,
        bucket: bucket.to_owned(),
        prefix: prefix.trim_matches('/').to_owned(),
    })
}

fn with_account(rest: &str) -> Option<Bucket> {
    let (account, rest) = rest.split_once('/')?;
    // Triton's form names the whole host, of which the first part is the account.
    let account = account.split('.').next().filter(|account| !account.is_empty())?;
    Some(Bucket { account: Some(account.to_owned()), ..plain(StoreKind::Azure, rest)? })
}

/// `bucket/folder`, or with a host before it: `host:port/bucket/folder`, `https://host:port/bucket/folder`.
fn s3(rest: &str) -> Option<Bucket> {
    let (scheme, rest) = match rest.split_once("://") {
        Some((scheme @ ("http" | "https"), rest)) => (Some(scheme), rest),
        Some(_) => return None,
        None => (None, rest),
    };
    let (first, behind) = rest.split_once('/').unwrap_or((rest, ""));
    // A bucket's name has no colon, and a host's port has one before it.
    if scheme.is_none() && !first.contains(':') {
        return plain(StoreKind::S3, rest);
    }
    let endpoint = Some(format!("{}://{first}", scheme.unwrap_or("http")));
    (!first.is_empty()).then_some(())?;
    Some(Bucket { endpoint, ..plain(StoreKind::S3, behind)? })
}

impl fmt::Display for RepositorySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) => folder.display().fmt(f),
            Self::Bucket(bucket) => f.write_str(&bucket.url),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(text: &str) -> String {
        match text.parse::<RepositorySource>() {
            Ok(RepositorySource::Folder(folder)) => format!("folder {}", folder.display()),
            Ok(RepositorySource::Bucket(Bucket { kind, endpoint, account, bucket, prefix, .. })) => {
                let [endpoint, account] = [endpoint, account].map(|part| part.unwrap_or("-".into()));
                format!("{kind:?} {endpoint} {account} {bucket} [{prefix}]")
            }
            Err(reason) => format!("error {reason}"),
        }
    }

    #[test]
    fn every_form_of_a_source_is_read() {
        for (text, wanted) in [
            ("models", "folder models"),
            ("/srv/models/", "folder /srv/models/"),
            ("s3://bucket", "S3 - - bucket []"),
            ("s3://bucket/a/b/", "S3 - - bucket [a/b]"),
            ("s3://localhost:9000/bucket/models", "S3 http://localhost:9000 - bucket [models]"),
            ("s3://https://minio.local/bucket", "S3 https://minio.local - bucket []"),
            ("s3://http://10.0.0.1:80/bucket/x", "S3 http://10.0.0.1:80 - bucket [x]"),
            ("gs://bucket/x", "Google - - bucket [x]"),
            ("az://container/x/y", "Azure - - container [x/y]"),
            ("as://acc.blob.core.windows.net/container/x", "Azure - acc container [x]"),
            ("as://acc/container", "Azure - acc container []"),
        ] {
            assert_eq!(show(text), wanted, "{text}");
        }
    }

    #[test]
    fn what_names_no_source_is_a_sentence() {
        for (text, wanted) in [
            ("", "it is empty"),
            ("ftp://host/x", "ftp:// isn't known"),
            ("s3://", "names no bucket: write s3://bucket/folder"),
            ("s3://localhost:9000", "names no bucket"),
            ("s3://ssh://x/y", "names no bucket"),
            ("gs:///x", "names no bucket"),
            ("as://account", "write as://account/container/folder"),
            ("s3://bucket/../other", "\"..\""),
        ] {
            let shown = show(text);
            assert!(shown.starts_with("error ") && shown.contains(wanted), "{text}: {shown}");
        }
    }
}
