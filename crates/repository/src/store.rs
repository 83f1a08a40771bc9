//! Opens the object store that a URL means, with the credentials that the environment has.

use crate::source::{Bucket, StoreKind};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::{ClientOptions, ObjectStore, RetryConfig};
use std::sync::Arc;
use std::time::Duration;

/// Longer than a store that is there takes to answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A download that stands still for so long is tried again. There is no bound on the whole of it: weights are large.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// After so long without success somebody should hear of it; the next look tries again.
const RETRY_TIMEOUT: Duration = Duration::from_secs(20);
const MAX_RETRIES: usize = 4;

/// The store of a bucket. Nothing is sent yet.
pub(crate) fn open(bucket: &Bucket) -> Result<Arc<dyn ObjectStore>, object_store::Error> {
    // Fails if a provider is installed already, which then does as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let retry = RetryConfig { max_retries: MAX_RETRIES, retry_timeout: RETRY_TIMEOUT, ..RetryConfig::default() };
    let plain = endpoint(bucket).is_some_and(|endpoint| endpoint.starts_with("http://"));
    let client = ClientOptions::new()
        .with_timeout_disabled()
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_read_timeout(READ_TIMEOUT)
        .with_allow_http(plain);
    Ok(match bucket.kind {
        StoreKind::S3 => {
            let mut builder = AmazonS3Builder::from_env().with_bucket_name(&bucket.bucket);
            if let Some(endpoint) = &bucket.endpoint {
                builder = builder.with_endpoint(endpoint);
            }
            Arc::new(builder.with_retry(retry).with_client_options(client).build()?)
        }
        StoreKind::Google => {
            let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(&bucket.bucket);
            Arc::new(builder.with_retry(retry).with_client_options(client).build()?)
        }
        StoreKind::Azure => {
            let mut builder = MicrosoftAzureBuilder::from_env().with_container_name(&bucket.bucket);
            // Triton's names for them, where object_store's aren't set.
            let account = bucket.account.clone().or_else(|| variable("AZURE_STORAGE_ACCOUNT"));
            if let Some(account) = account {
                builder = builder.with_account(account);
            }
            if let Some(key) = variable("AZURE_STORAGE_KEY") {
                builder = builder.with_access_key(key);
            }
            Arc::new(builder.with_retry(retry).with_client_options(client).build()?)
        }
    })
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Where requests go, if it isn't the provider's own address.
fn endpoint(bucket: &Bucket) -> Option<String> {
    let variables: &[&str] = match bucket.kind {
        StoreKind::S3 => &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"],
        StoreKind::Google => &["GOOGLE_BASE_URL"],
        StoreKind::Azure => &["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"],
    };
    bucket.endpoint.clone().or_else(|| variables.iter().find_map(|name| variable(name)))
}

/// What to look at when a store can't be read.
pub(crate) fn advice(kind: StoreKind) -> &'static str {
    match kind {
        StoreKind::S3 => {
            "check the address, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION (AWS_SKIP_SIGNATURE=true for a \
             public bucket)"
        }
        StoreKind::Google => "check the bucket's name and GOOGLE_APPLICATION_CREDENTIALS",
        StoreKind::Azure => "check the container's name, AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY",
    }
}
