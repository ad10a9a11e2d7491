//! What pages look like: functions from what is known to HTML. The template engine escapes every
//! text.

pub(super) mod account;
pub(super) mod accounts;
pub(super) mod audit;
pub(super) mod charge;
pub(super) mod charges;
pub(super) mod chart;
pub(super) mod customer;
pub(super) mod form;
pub(super) mod frame;
pub(super) mod guide;
pub(super) mod jobs;
pub(super) mod key_list;
pub(super) mod keys;
pub(super) mod live;
pub(super) mod models;
pub(super) mod parts;
pub(super) mod routes;
pub(super) mod sign_in;
pub(super) mod statement;
pub(super) mod today;
pub(super) mod traffic;
pub(super) mod webhooks;
