// Package sim runs a serving engine, channels and the two-pointer scheduler in virtual
// time. What things really take is the Truth's matter and need not be what the scheduler
// believes. Nothing sleeps and no bytes move: figures that come from here say so.
//
// Engine forms steps as serving engines do and is used by benchmarks in real time as well; Run
// drives it on virtual time:
//
//	arrivals ─▶ Engine ── Ask, Computed ──▶ Scheduler ── Load ──▶ channel (one server: bytes ÷ rate, then latency)
//	              ▲ step ends                    ▲ Landed ───────────┘
//
// A request is restored when each of its tokens is computed or loaded on every stage; then its
// suffix is prefilled, and with that its first token is there (TTFT).
//
// Invariants: every token of every request is computed or loaded exactly once (Run checks
// it and fails); time never goes back; equal arguments give equal results.
package sim
