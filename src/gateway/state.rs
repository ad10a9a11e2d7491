//! What all requests share: the ledger, the routes, the budgets and the caches.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::Semaphore;

use super::account_api::searches::JournalSearches;
use super::idempotency::journal_search::JOURNAL_SEARCHES_MAX;
use super::idempotency::recorder::recording_budget;
use super::idempotency::refused_attempts::RefusedAttempts;
use super::in_flight::InFlight;
use super::limits::{Limits, Timeouts};
use super::traffic::live_feed::LiveFeed;
use super::videos::shared::VideoService;
use crate::catalogue::Catalogue;
use crate::clock::unix_ms;
use crate::files::bodies::BodyFiles;
use crate::gateway::budgets::answers::AnswerBudget;
use crate::gateway::budgets::bodies;
use crate::gateway::budgets::concurrency::ConcurrencyLimits;
use crate::gateway::budgets::overload::OverloadMonitor;
use crate::gateway::budgets::slow_bodies::SlowBodies;
use crate::gateway::budgets::tenants::{TenantBudget, TenantTable};
use crate::gateway::budgets::uploads::{UploadBudget, upload_budget};
use crate::gateway::key_uses::KeyUses;
use crate::gateway::request::client_address::TrustedProxies;
use crate::gateway::request::cors::CorsOrigins;
use crate::gateway::request::free_rates::FreeRates;
use crate::gateway::request::key_cache::ApiKeyCache;
use crate::gateway::request::models::ModelListing;
use crate::gateway::settlement::output_estimates::OutputEstimates;
use crate::gateway::suspended_accounts::SuspendedAccounts;
use crate::gateway::upstream::pool::UpstreamPool;
use crate::gateway::upstream::routes::RouteTable;
use crate::idempotency::{FirstAttempts, Fleet, ReplyStore};
use crate::kv_cache::AccountCache;
use crate::ledger::{Leases, Ledger};
use crate::traces::tracer::Tracer;
use crate::usage::UsageStore;

/// The state that all requests share.
pub(crate) struct Gateway {
    /// The models and prices; replaced as a whole when the rules are reloaded.
    pub catalogue: Arc<ArcSwap<Catalogue>>,
    /// The routes to the vendors.
    pub routes: Arc<RouteTable>,
    /// Balances, holds and charges.
    pub ledger: Arc<dyn Ledger>,
    /// A cache of values per account, each with a time to live.
    pub account_cache: Arc<dyn AccountCache>,
    /// The store's name in metrics.
    pub store_name: &'static str,
    /// Size and concurrency limits.
    pub limits: Limits,
    /// Timeouts.
    pub timeouts: Timeouts,
    /// The requests in flight.
    pub in_flight: InFlight,
    /// Detects whether the runtime is overloaded.
    pub overload: OverloadMonitor,
    /// Limits of requests in flight: in total, per account and per address.
    pub concurrency: ConcurrencyLimits,
    /// The settlements in flight: calls that are over and whose holds are being settled or voided.
    pub settlements: InFlight,
    /// The memory budget of uploads.
    pub upload_budget: UploadBudget,
    /// The memory budget of all other request bodies.
    pub body_budget: TenantBudget,
    /// The memory budget of responses.
    pub answer_budget: AnswerBudget,
    /// The requests whose bodies arrive slowly. They are evicted when the request limit is reached.
    pub slow_bodies: Arc<SlowBodies>,
    /// The list of all models, as it is sent to clients.
    pub model_listing: ModelListing,
    /// Video jobs.
    pub videos: VideoService,
    /// The idempotency store: claims on keys, and stored replies.
    pub reply_store: Arc<dyn ReplyStore>,
    /// The first attempts of calls, in the memory of this process.
    pub first_attempts: FirstAttempts,
    /// The processes that share the store, each with first attempts of its own.
    pub fleet: Arc<dyn Fleet>,
    /// Only a few journals are searched at the same time.
    pub journal_searches: Arc<Semaphore>,
    /// The accounts that look for their charges.
    pub account_searches: JournalSearches,
    /// The sums of usage.
    pub usage: Arc<dyn UsageStore>,
    /// The leases that this process renews.
    pub leases: Leases,
    /// The memory budget of replies that are recorded for idempotent repeats.
    pub reply_budget: TenantBudget,
    /// Files for bodies that are too large for the ledger's store.
    pub body_files: Arc<BodyFiles>,
    /// Connections to vendors.
    pub upstream_pool: Arc<UpstreamPool>,
    /// The proxies whose forwarded client address is trusted.
    pub trusted_proxies: Option<Arc<TrustedProxies>>,
    /// The origins whose pages may call from a browser.
    pub cors_origins: CorsOrigins,
    /// Cache of API keys that were looked up.
    pub key_cache: Arc<ApiKeyCache>,
    /// When keys were last used, as far as the ledger does not know it yet.
    pub key_uses: Arc<KeyUses>,
    /// The accounts that are suspended.
    pub suspended: Arc<SuspendedAccounts>,
    /// The accounts and addresses that use any of the budgets.
    pub tenants: Arc<TenantTable>,
    /// Only one call at a time has its tokens counted, so that counting takes one core at most.
    pub count_turn: Arc<Semaphore>,
    /// Attempts that were refused for a while.
    pub refused_attempts: RefusedAttempts,
    /// What the calls of each account took lately, by model.
    pub output_estimates: OutputEstimates,
    /// The rate limits of requests that cost nothing.
    pub free_rates: FreeRates,
    /// The calls that have just ended, while somebody watches.
    pub live: Arc<LiveFeed>,
    /// Begins and takes traces; `None` if nothing is traced.
    pub tracer: Option<Arc<Tracer>>,
}

/// The parts from which a [`Gateway`] is made.
pub(crate) struct GatewayConfig {
    pub catalogue: Arc<ArcSwap<Catalogue>>,
    pub routes: Arc<RouteTable>,
    pub ledger: Arc<dyn Ledger>,
    pub account_cache: Arc<dyn AccountCache>,
    pub store_name: &'static str,
    pub videos: VideoService,
    pub reply_store: Arc<dyn ReplyStore>,
    pub usage: Arc<dyn UsageStore>,
    pub first_attempts: FirstAttempts,
    pub fleet: Arc<dyn Fleet>,
    pub leases: Leases,
    pub body_files: Arc<BodyFiles>,
    pub limits: Limits,
    pub timeouts: Timeouts,
    pub upstream_pool: UpstreamPool,
    pub trusted_proxies: Option<Arc<TrustedProxies>>,
    pub cors_origins: CorsOrigins,
    pub tracer: Option<Arc<Tracer>>,
}

impl Gateway {
    /// Makes a gateway from its parts, with new budgets and caches.
    #[must_use]
    pub(crate) fn new(parts: GatewayConfig) -> Gateway {
        let tenants = Arc::default();
        Gateway {
            catalogue: parts.catalogue,
            routes: parts.routes,
            ledger: parts.ledger,
            account_cache: parts.account_cache,
            store_name: parts.store_name,
            overload: OverloadMonitor::new(parts.timeouts.shed_lag),
            concurrency: ConcurrencyLimits::new(&parts.limits),
            upload_budget: upload_budget(&parts.limits),
            body_budget: bodies::new_budget(&parts.limits),
            slow_bodies: Arc::default(),
            model_listing: ModelListing::default(),
            answer_budget: AnswerBudget::new(&parts.limits, parts.timeouts.stall),
            videos: parts.videos,
            reply_store: parts.reply_store,
            first_attempts: parts.first_attempts,
            fleet: parts.fleet,
            journal_searches: Arc::new(Semaphore::new(JOURNAL_SEARCHES_MAX)),
            account_searches: JournalSearches::default(),
            usage: parts.usage,
            leases: parts.leases,
            reply_budget: recording_budget(),
            body_files: parts.body_files,
            limits: parts.limits,
            timeouts: parts.timeouts,
            in_flight: InFlight::default(),
            settlements: InFlight::default(),
            upstream_pool: Arc::new(parts.upstream_pool),
            trusted_proxies: parts.trusted_proxies,
            cors_origins: parts.cors_origins,
            key_cache: Arc::new(ApiKeyCache::new(&tenants)),
            key_uses: Arc::default(),
            suspended: Arc::default(),
            tenants,
            count_turn: Arc::new(Semaphore::new(1)),
            refused_attempts: RefusedAttempts::default(),
            output_estimates: OutputEstimates::default(),
            free_rates: FreeRates::default(),
            live: Arc::new(LiveFeed::new(unix_ms())),
            tracer: parts.tracer,
        }
    }
}
