//! The identity provider: what it publishes of itself, the exchange of a code for an identity
//! token, and the checks of that token.

use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use openidconnect::core::{
    CoreAuthDisplay, CoreAuthPrompt, CoreClientAuthMethod, CoreErrorResponseType, CoreGenderClaim,
    CoreJsonWebKey, CoreJsonWebKeySet, CoreJweContentEncryptionAlgorithm, CoreJwsSigningAlgorithm,
    CoreProviderMetadata, CoreResponseType, CoreRevocableToken, CoreRevocationErrorResponse,
    CoreTokenIntrospectionResponse, CoreTokenType,
};
use openidconnect::{
    AccessToken, AccessTokenHash, AdditionalClaims, AuthType, AuthenticationFlow,
    AuthorizationCode, ClaimsVerificationError, Client, ClientId, ClientSecret, CsrfToken,
    EmptyExtraTokenFields, EndpointMaybeSet, EndpointNotSet, EndpointSet, IdToken, IdTokenClaims,
    IdTokenFields, IssuerUrl, Nonce, OAuth2TokenResponse as _, PkceCodeChallenge, PkceCodeVerifier,
    RedirectUrl, RequestTokenError, Scope, SignatureVerificationError, StandardErrorResponse,
    StandardTokenResponse, SubjectIdentifier, TokenResponse as _, UserInfoClaims,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::timeout;

use super::attempt::SignInAttempt;
use super::claims::{identity_of, lacks_any};
use super::failure::{SignInFailure, loggable};
use super::provider_http::{ProviderHttp, ProviderHttpError};
use crate::conf::OidcSection;
use crate::error_chain::error_chain;
use crate::sessions::Principal;

/// At most this many sign-ins wait for the provider at a time, so that other pages have their
/// permits.
const WAITING_MAX: usize = 8;
/// The time within which the provider must have done all that one request needs of it.
const SIGN_IN_TIMEOUT: Duration = Duration::from_secs(30);
/// What the provider publishes of itself is read again when it is older.
const KEPT_MAX: Duration = Duration::from_secs(3_600);
/// The keys are read again for a token with an unknown key at most once in this time.
const KEYS_AGAIN_MIN: Duration = Duration::from_secs(60);
/// The algorithms by which a token may be signed. Those whose key would be our own secret, and
/// `none`, are not among them.
const ALGORITHMS: [CoreJwsSigningAlgorithm; 9] = [
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha256,
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha384,
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha512,
    CoreJwsSigningAlgorithm::RsaSsaPssSha256,
    CoreJwsSigningAlgorithm::RsaSsaPssSha384,
    CoreJwsSigningAlgorithm::RsaSsaPssSha512,
    CoreJwsSigningAlgorithm::EcdsaP256Sha256,
    CoreJwsSigningAlgorithm::EcdsaP384Sha384,
    CoreJwsSigningAlgorithm::EdDsa,
];
const OPENID_SCOPE: &str = "openid";

/// The claims of a token beside those that the standard names.
#[derive(Debug, Clone, Deserialize, Serialize)]
struct OtherClaims {
    #[serde(flatten)]
    claims: Map<String, Value>,
}

impl AdditionalClaims for OtherClaims {}

type ProviderIdToken = IdToken<
    OtherClaims,
    CoreGenderClaim,
    CoreJweContentEncryptionAlgorithm,
    CoreJwsSigningAlgorithm,
>;
type ProviderTokenFields = IdTokenFields<
    OtherClaims,
    EmptyExtraTokenFields,
    CoreGenderClaim,
    CoreJweContentEncryptionAlgorithm,
    CoreJwsSigningAlgorithm,
>;
type ProviderClient = Client<
    OtherClaims,
    CoreAuthDisplay,
    CoreGenderClaim,
    CoreJweContentEncryptionAlgorithm,
    CoreJsonWebKey,
    CoreAuthPrompt,
    StandardErrorResponse<CoreErrorResponseType>,
    StandardTokenResponse<ProviderTokenFields, CoreTokenType>,
    CoreTokenIntrospectionResponse,
    CoreRevocableToken,
    CoreRevocationErrorResponse,
    EndpointSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointMaybeSet,
    EndpointMaybeSet,
>;

/// The identity provider by which operators sign in. It has no `Debug`, so that the secret cannot
/// get into a log by accident.
pub(crate) struct IdentityProvider {
    section: OidcSection,
    issuer: IssuerUrl,
    secret: Option<ClientSecret>,
    redirect: RedirectUrl,
    http: ProviderHttp,
    published: Mutex<PublishedMetadata>,
    waiting: Semaphore,
    last_logged: std::sync::Mutex<Option<Instant>>,
}

/// What the provider publishes of itself, as it was read last.
#[derive(Default)]
struct PublishedMetadata {
    /// The metadata with the keys, and when it was read.
    metadata: Option<(Arc<CoreProviderMetadata>, Instant)>,
    /// When the keys were last read again.
    keys_again: Option<Instant>,
}

impl IdentityProvider {
    /// Makes the provider of a configuration, which sends browsers back to `redirect`.
    ///
    /// # Errors
    /// TLS cannot be set up, or an address is none.
    pub(crate) fn new(
        section: &OidcSection,
        secret: Option<String>,
        redirect: String,
    ) -> Result<IdentityProvider, String> {
        let http = ProviderHttp::new(&section.issuer).map_err(|why| why.to_string())?;
        let issuer = IssuerUrl::new(section.issuer.clone()).map_err(|why| why.to_string())?;
        let redirect = RedirectUrl::new(redirect).map_err(|why| why.to_string())?;
        Ok(IdentityProvider {
            section: section.clone(),
            issuer,
            secret: secret.map(ClientSecret::new),
            redirect,
            http,
            published: Mutex::default(),
            waiting: Semaphore::new(WAITING_MAX),
            last_logged: std::sync::Mutex::default(),
        })
    }

    /// Returns the host of the provider, as people read it.
    pub(in crate::console) fn host(&self) -> &str {
        self.section.issuer_host()
    }

    /// Whether an answer that names its issuer is of this provider.
    pub(super) fn is_issuer(&self, issuer: &str) -> bool {
        self.section.issuer == issuer
    }

    /// Returns the address at the provider to which the browser of an attempt is sent.
    pub(super) async fn authorization_address(
        &self,
        attempt: &SignInAttempt,
    ) -> Result<String, SignInFailure> {
        self.bounded(async {
            let client = self.client(&*self.metadata().await?);
            let (state, nonce) = (attempt.state.clone(), attempt.nonce.clone());
            let verifier = PkceCodeVerifier::new(attempt.verifier.clone());
            let request = client.authorize_url(
                AuthenticationFlow::<CoreResponseType>::AuthorizationCode,
                || CsrfToken::new(state),
                || Nonce::new(nonce),
            );
            // The library asks for the first scope by itself.
            let scopes = self.section.scopes.iter().filter(|scope| *scope != OPENID_SCOPE);
            let request = request.add_scopes(scopes.cloned().map(Scope::new));
            let challenge = PkceCodeChallenge::from_code_verifier_sha256(&verifier);
            Ok(request.set_pkce_challenge(challenge).url().0.to_string())
        })
        .await
    }

    /// Exchanges the code of an attempt, checks what the provider tells, and returns who it is.
    pub(super) async fn identity(
        &self,
        attempt: &SignInAttempt,
        code: String,
    ) -> Result<Principal, SignInFailure> {
        self.bounded(async {
            let metadata = self.metadata().await?;
            let client = self.client(&metadata);
            let unusable = |why: &(dyn Error + 'static)| self.unusable(why);
            let request = client.exchange_code(AuthorizationCode::new(code));
            let request = request.map_err(|why| unusable(&why))?;
            let verifier = PkceCodeVerifier::new(attempt.verifier.clone());
            let response = request.set_pkce_verifier(verifier).request_async(&self.http).await;
            let response = response.map_err(|why| self.exchange_failure(&why))?;
            let none = || SignInFailure::Untrusted("there is none in the answer".to_owned());
            let token = response.id_token().ok_or_else(none)?;
            let access = response.access_token();
            let (subject, mut claims) = self.verified(&metadata, attempt, token, access).await?;
            // Some providers tell such claims at another address only. What is signed counts.
            if lacks_any(&self.section, &claims) {
                for (name, value) in self.more_claims(&client, access.clone(), subject).await? {
                    claims.entry(name).or_insert(value);
                }
            }
            Ok(identity_of(&self.section, &claims)?)
        })
        .await
    }

    /// Does what needs the provider, if not too many do, and within its time.
    async fn bounded<T>(
        &self,
        work: impl Future<Output = Result<T, SignInFailure>>,
    ) -> Result<T, SignInFailure> {
        let _permit = self.waiting.try_acquire().map_err(|_| SignInFailure::Busy)?;
        let slow = || format!("not done within {} s", SIGN_IN_TIMEOUT.as_secs());
        let done = timeout(SIGN_IN_TIMEOUT, work).await;
        done.map_err(|_| SignInFailure::Slow(slow()))?
    }

    /// Returns what the provider publishes of itself; it is read if what is known is too old.
    async fn metadata(&self) -> Result<Arc<CoreProviderMetadata>, SignInFailure> {
        let mut published = self.published.lock().await;
        if let Some((metadata, read_at)) = &published.metadata
            && read_at.elapsed() < KEPT_MAX
        {
            return Ok(metadata.clone());
        }
        let found = CoreProviderMetadata::discover_async(self.issuer.clone(), &self.http).await;
        let found = Arc::new(found.map_err(|why| self.unusable(&why))?);
        let authorization = found.authorization_endpoint().as_str();
        self.http.check_address(authorization).map_err(|why| self.unusable(&why))?;
        published.metadata = Some((found.clone(), Instant::now()));
        Ok(found)
    }

    /// Reads the keys again, unless that was done just now.
    async fn metadata_with_new_keys(&self) -> Result<Arc<CoreProviderMetadata>, SignInFailure> {
        let metadata = self.metadata().await?;
        let mut published = self.published.lock().await;
        if published.keys_again.is_some_and(|at| at.elapsed() < KEYS_AGAIN_MIN) {
            return Ok(metadata);
        }
        published.keys_again = Some(Instant::now());
        let keys = CoreJsonWebKeySet::fetch_async(metadata.jwks_uri(), &self.http).await;
        let keys = keys.map_err(|why| self.unusable(&why))?;
        let metadata = Arc::new(CoreProviderMetadata::clone(&metadata).set_jwks(keys));
        // The rest is as old as it was.
        if let Some((known, _)) = &mut published.metadata {
            *known = metadata.clone();
        }
        Ok(metadata)
    }

    fn client(&self, metadata: &CoreProviderMetadata) -> ProviderClient {
        let methods = metadata.token_endpoint_auth_methods_supported();
        let takes_basic = methods
            .is_none_or(|methods| methods.contains(&CoreClientAuthMethod::ClientSecretBasic));
        let auth = if takes_basic { AuthType::BasicAuth } else { AuthType::RequestBody };
        let id = ClientId::new(self.section.client_id.clone());
        let client = Client::from_provider_metadata(metadata.clone(), id, self.secret.clone());
        client.set_redirect_uri(self.redirect.clone()).set_auth_type(auth)
    }

    /// Checks an identity token, and returns whom it is about and its claims.
    async fn verified(
        &self,
        metadata: &CoreProviderMetadata,
        attempt: &SignInAttempt,
        token: &ProviderIdToken,
        access: &AccessToken,
    ) -> Result<(SubjectIdentifier, Map<String, Value>), SignInFailure> {
        let nonce = Nonce::new(attempt.nonce.clone());
        let client = self.client(metadata);
        let mut checked = check_token(&client, &nonce, token, access);
        if let Err(ClaimsVerificationError::SignatureVerification(
            SignatureVerificationError::NoMatchingKey,
        )) = checked
        {
            let client = self.client(&*self.metadata_with_new_keys().await?);
            checked = check_token(&client, &nonce, token, access);
        }
        let claims = checked.map_err(|why| SignInFailure::Untrusted(self.shown(&why)))?;
        Ok((claims.subject().clone(), map_of(&claims)?))
    }

    /// Asks for the claims that are not in the token; none if the provider has no address for that.
    async fn more_claims(
        &self,
        client: &ProviderClient,
        access: AccessToken,
        subject: SubjectIdentifier,
    ) -> Result<Map<String, Value>, SignInFailure> {
        let Ok(request) = client.user_info(access, Some(subject)) else { return Ok(Map::new()) };
        let told = request.request_async(&self.http).await;
        let told: UserInfoClaims<OtherClaims, CoreGenderClaim> =
            told.map_err(|why| self.unusable(&why))?;
        map_of(&told)
    }

    fn exchange_failure(
        &self,
        why: &RequestTokenError<ProviderHttpError, StandardErrorResponse<CoreErrorResponseType>>,
    ) -> SignInFailure {
        match why {
            RequestTokenError::ServerResponse(refused)
                if *refused.error() == CoreErrorResponseType::InvalidGrant =>
            {
                SignInFailure::CodeRefused
            }
            // The fault itself may have the text of a token.
            RequestTokenError::Parse(fault, _) => {
                let path = self.shown_text(&fault.path().to_string());
                SignInFailure::Unusable(format!("the token response cannot be read at '{path}'"))
            }
            other => self.unusable(other),
        }
    }

    /// Returns the failure for an answer of the provider that is of no use.
    fn unusable(&self, why: &(dyn Error + 'static)) -> SignInFailure {
        let mut cause = Some(why);
        let mut is_slow = false;
        while let Some(found) = cause {
            let http = found.downcast_ref::<ProviderHttpError>();
            is_slow |= matches!(http, Some(ProviderHttpError::Slow));
            cause = found.source();
        }
        let shown = self.shown(why);
        if is_slow { SignInFailure::Slow(shown) } else { SignInFailure::Unusable(shown) }
    }

    /// Returns an error with its causes, for the log.
    fn shown(&self, why: &(dyn Error + 'static)) -> String {
        self.shown_text(&error_chain(why))
    }

    fn shown_text(&self, text: &str) -> String {
        loggable(text, self.secret.as_ref().map(|secret| secret.secret().as_str()))
    }

    /// Logs a failure about which somebody has to do something, at most once a second.
    pub(super) fn log_failure(&self, why: &SignInFailure) {
        if !why.is_for_operators() {
            return;
        }
        let now = Instant::now();
        let Ok(mut last) = self.last_logged.lock() else { return };
        let is_soon = |last: Instant| now.duration_since(last) < Duration::from_secs(1);
        if last.is_none_or(|last| !is_soon(last)) {
            *last = Some(now);
            log::warn!(
                event = "console_oidc_failed", issuer = self.section.issuer.as_str(), error:% = why;
                "sign-in by the identity provider failed"
            );
        }
    }
}

/// Checks the signature, issuer, audience, expiry and nonce of a token, and that the access token
/// came with it. Returns its claims.
fn check_token(
    client: &ProviderClient,
    nonce: &Nonce,
    token: &ProviderIdToken,
    access: &AccessToken,
) -> Result<IdTokenClaims<OtherClaims, CoreGenderClaim>, ClaimsVerificationError> {
    let verifier = client.id_token_verifier().set_allowed_algs(ALGORITHMS);
    let claims = token.clone().into_claims(&verifier, nonce)?;
    if let Some(expected) = claims.access_token_hash() {
        let of_signature = ClaimsVerificationError::SignatureVerification;
        let algorithm = token.signing_alg().map_err(of_signature)?;
        let key = token.signing_key(&verifier).map_err(of_signature)?;
        let found = AccessTokenHash::from_token(access, algorithm, key);
        if found.ok().as_ref() != Some(expected) {
            let what = "the access token is not the one that came with it".to_owned();
            return Err(ClaimsVerificationError::Other(what));
        }
    }
    Ok(claims)
}

fn map_of(claims: &impl Serialize) -> Result<Map<String, Value>, SignInFailure> {
    match serde_json::to_value(claims) {
        Ok(Value::Object(claims)) => Ok(claims),
        _ => Err(SignInFailure::Unusable("the claims are no object".to_owned())),
    }
}
