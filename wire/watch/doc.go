// Package watch remembers what a server was asked and how long it took: for /metrics a
// histogram by protocol, call and outcome, for people the slowest calls of late. All
// protocols record here.
//
//	resp, wire, http ── Record(Call) ──▶ histogram  ──▶ /metrics
//	                                └──▶ slowest    ──▶ console, /api/v1/calls
//
// A Call holds names and sizes, never keys, values or credentials.
package watch
