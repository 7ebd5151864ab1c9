package twopointer

import (
	"fmt"
	"time"

	"github.com/skepkv/skep"
)

// Kind says what an Event is.
type Kind uint8

const (
	Join     Kind = iota + 1 // New wants to be restored
	Leave                    // Strand is over: computed to its end, cancelled or gone
	Ready                    // Channel could take another piece
	Landed                   // Strand's [From, To) is loaded: Bytes, in Took seconds
	Failed                   // Strand's [From, To) will not come
	Ask                      // the engine would compute up to Want more of Strand
	Computed                 // Strand's [From, To) is computed; Took: the step's seconds, with the last of its events
	Speed                    // Channel moves Rate bytes a second
	Promote                  // Strand's weight, deadline and background are those of New
	Taken                    // the engine claimed up to To of Strand by its claim word
)

// Event is something that happened, or a question, at a time.
type Event struct {
	At      time.Duration // since any moment; never less than in the event before
	Kind    Kind
	Strand  int
	Channel int
	From    int // tokens, or layers
	To      int
	Want    int  // Ask: how many tokens (or layers)
	Idle    bool // Ask: the engine has nothing else to do
	// Boundary says that the piece is boundary activations of tokens [From, To).
	Boundary bool
	// Near, of Landed, says that it did not come by the channel: that says nothing of its speed.
	Near  bool
	Bytes float64
	Took  float64
	// Other is what else the step that ended with this Computed did, in seconds by the engine's
	// stated cost, and Launches how many launches it was (0: part of a step whose last event says).
	Other    float64
	Launches float64
	Rate     float64
	New      *Strand
}

// Strand is one request on one pipeline stage: what the two pointers run over.
type Strand struct {
	Request int // the caller's name for it; the same on all stages
	Stage   int
	Channel int
	Tokens  int // stored prefix
	Layers  int // of this stage; 0: never by layers
	Cost    Cost
	// BytesPerToken is what loading a token moves; Boundary what computing one needs
	// loaded before (0 on the first stage, and in an engine that runs the stages in a pipeline).
	BytesPerToken, Boundary float64
	// After is engine seconds until the request's first token once the prefix is there:
	// its suffix's prefill.
	After  float64
	Weight float64 // 0: 1
	// Deadline is when it should be restored; 0: none.
	Deadline time.Duration
	// Background is a prefetch: it gets what nobody else wants.
	Background bool
	// Start is how many leading tokens come from elsewhere: another strand of the batch has
	// the same prefix and restores it, so it is read once.
	Start int
	// Unit is the tokens of a stored block, 0: the Config's. Decided says that Mode is what it
	// is and not to be chosen.
	Unit    int
	Decided bool
	Mode    Mode
	// LoadOnly says that the engine computes nothing of the prefix, failures aside.
	LoadOnly bool
}

// What is what a Decision says.
type What uint8

const (
	Nothing  What = iota // nothing to load now; or wait before asking again
	Load                 // load Strand's [From, To)
	Grant                // compute Strand's [From, To); go on at Jump
	Accepted             // Strand joined under that number
	Declined             // loading would take longer than computing: compute it all
)

// Decision is the answer to an Event.
type Decision struct {
	What     What
	Strand   int
	From, To int
	Jump     int // Ask: the first position at or after To that is neither loaded nor on its way; the end: done
	Boundary bool
	Bytes    float64
	Mode     Mode
	// Expected is how long loading (Join: all of it; Load: this piece) is expected to
	// take, queueing included, and Compute what computing it would, both in seconds.
	Expected, Compute float64
}

// Engine is how the engine that asks spends its steps.
type Engine uint8

const (
	// RoundRobin advances every request each round.
	RoundRobin Engine = 0
	// FirstCome fills a budget of tokens in order of arrival.
	FirstCome Engine = 1
)

func (e Engine) String() string {
	if e == FirstCome {
		return "first-come"
	}
	return "round-robin"
}

// Channel is a way by which stored bytes arrive: the local drives, a link.
type Channel struct {
	BytesPerSecond float64
	Latency        float64 // seconds
}

// Config of a Scheduler.
type Config struct {
	Policy   Policy
	Engine   Engine
	Chunk    int       // tokens of a chunk; 512 (the block size FlashAttention likes, CacheFlow §3.1)
	Piece    int       // tokens loaded at a time by skep's own policies; the chunk
	Unit     int       // tokens of a stored block: what a piece and a grant are rounded to; 16
	Channels []Channel // at least one; what is known at first
	Stages   int       // engines that compute on their own; 1
	// Patience is how long a strand may wait before it comes first; 10 s. An engine that advances every request and
	// is idle at times has 0.3 of it and as long as the strand would take by itself.
	Patience time.Duration
	// Crossover is L_Δ: prompts at least this long are restored by tokens. 0: reckoned, for policy cacheflow
	// by whole chunks (Problem.Crossover), for skep's own by Problem.Turn at the speeds as they are.
	Crossover int
	// Margin is how much longer than computing a load must be expected to take to be declined,
	// as a factor; 1.1. Near break-even either is as good, and a guess would be wrong half of the time.
	Margin float64
	// Launches is the largest share of the expected time that may go into the fixed cost
	// of further launches; 0.01.
	Launches float64
}

func (c *Config) ensureDefaults() {
	if c.Chunk == 0 {
		c.Chunk = 512
	}
	if c.Piece == 0 {
		c.Piece = c.Chunk
	}
	if c.Unit == 0 {
		c.Unit = 16
	}
	if c.Stages == 0 {
		c.Stages = 1
	}
	if c.Patience == 0 {
		c.Patience = 10 * time.Second
	}
	if c.Margin == 0 {
		c.Margin = 1.1
	}
	if c.Launches == 0 {
		c.Launches = 0.01
	}
}

func (c *Config) validate() error {
	const op = "two-pointer scheduler"
	switch {
	case c.Policy >= policies:
		return skep.Invalidf(op, "policy", int(c.Policy), fmt.Sprintf("0 to %d", policies-1))
	case c.Chunk < 1:
		return skep.Invalidf(op, "chunk", c.Chunk, "at least 1 token")
	case c.Piece < 1 || c.Piece > c.Chunk:
		return skep.Invalidf(op, "piece", c.Piece, fmt.Sprintf("1 to the chunk, %d tokens", c.Chunk))
	case c.Unit < 1 || c.Unit > c.Chunk:
		return skep.Invalidf(op, "unit", c.Unit, fmt.Sprintf("1 to the chunk, %d tokens", c.Chunk))
	case len(c.Channels) < 1 || len(c.Channels) > 1024:
		return skep.Invalidf(op, "channels", len(c.Channels), "1 to 1024")
	case c.Stages < 1 || c.Stages > 1024:
		return skep.Invalidf(op, "stages", c.Stages, "1 to 1024")
	}
	for i, ch := range c.Channels {
		if !(ch.BytesPerSecond > 0) || !(ch.Latency >= 0) {
			return skep.Invalidf(op, fmt.Sprintf("channel %d", i), fmt.Sprintf("%g bytes/s, %g s", ch.BytesPerSecond, ch.Latency), "a speed above 0 and a latency not below")
		}
	}
	return nil
}
