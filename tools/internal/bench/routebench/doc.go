// Package routebench compares ways of sending requests to engines, on recorded workloads: nothing is computed, and
// engines are a model. What decides is real: package routing is asked as a router asks it.
//
// A model of an engine takes one request after the other. A request costs the tokens that the engine's own cache does
// not have, at a rate; the cache holds so many blocks, and forgets the one that was used longest ago. There is no
// store behind it: what another engine has is computed anew.
//
// Requests of a session come as far apart as they were recorded, and never before the first token of the one before.
// So many sessions are under way at once. Requests without a session come at their recorded times.
package routebench
