// Package serve is skep serve: a store, and in front of it the binary protocol, RESP
// and HTTP, configured from one struct.
//
// # Configuration
//
// Config is the one documented struct. Its values come, later ones winning, from its
// defaults, a YAML file, the environment (SKEP_ and the path in capitals:
// SKEP_TLS_CERT) and flags. Everything that is wrong with them is reported at once.
// Credentials and tenants come from the file only.
//
//	Load ─▶ Config ─▶ Run: store.Open ─▶ wire ─┐
//	                        │            resp ─┼─▶ auth.Directory
//	                        │            http ─┘      ▲
//	                        └── watcher: certificates, credentials, limits: again when their files change
//
// # Invariants
//
//   - Without credentials nothing listens but on loopback addresses and Unix sockets, and
//     the log says so.
//   - No secret is in Config: tokens are read from files or the environment, hashed, and
//     forgotten. skep config show prints none.
//   - Nothing is opened before the whole configuration has been checked.
//   - SIGTERM drains: not ready first, then no new calls, then the calls under way end or
//     are cut at Drain, then the store is closed.
//   - Every goroutine ends before Run returns.
package serve
