// Package auth says who is speaking: it maps what a peer presents, a token or a
// client certificate, to an Identity, which is a tenant and rights. The binary
// protocol, RESP and HTTP all ask here, so a credential means the same everywhere.
//
//	token ────────┐
//	              ├─▶ Directory.Identify ─▶ Identity{Tenant, Rights, …} ─▶ Check on every call
//	certificate ──┘        ▲                                          ─▶ Until ends what lasts
//	                       └ Replace(credentials): reload without a restart
//
// # Invariants
//
//   - A token is kept as its HMAC under a key made at start and compared with every
//     credential's, in constant time and without stopping early, so how long a wrong
//     token takes says nothing about the right ones.
//   - Wrong, unknown and expired credentials give the same error, Denied, which names
//     neither.
//   - An Identity is checked again on every call: when its credential is removed by
//     Replace or runs out, connections that hold it are refused too, and what lasts
//     longer than a call (streams of events, sessions, connections) is ended (Until).
//   - Who presents something wrong is answered the later, up to a second, the more of that
//     comes from the same address. Who is right is answered at once.
//   - What concerns the store as a whole is an operator's: of nobody who is one tenant.
//   - No token is ever in an error, a log line or what Identity prints.
//   - A Directory without credentials is open: everybody is the default tenant with all
//     rights. Whoever listens must then listen where only this machine's users reach
//     (the server command sees to that).
//
// A Tenant's Limits (requests and bytes a second, connections) are shared by all
// connections of the tenant over all protocols; Admit says when to come back.
package auth
