package appender

import (
	"log/slog"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/internal/puts"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/internal/watermark"
	"github.com/skepkv/skep/store/memory"
)

// Config is what an appender writes with.
type Config struct {
	Space        *space.Table
	Rows         *commit.Rows
	Root         *watermark.Root
	Index        *index.Index
	Puts         *puts.Table
	Arena        *memory.Arena
	Scarce       memory.Scarce
	Count        *observe.Counts
	Log          *slog.Logger
	Full         func() bool      // the catalog has no room for what users put
	Why          func() skep.Kind // of those that are declined for it
	IOBytes      int64            // of I/O buffers in the arena
	SpaceTimeout time.Duration    // of a put that waits for room
	OpTimeout    time.Duration    // of an operation of a drive
}

// Appender writes blocks and log entries to the groups of a store. It is safe for any number of goroutines. Make it
// with New.
type Appender struct{ Config }

// New makes an appender.
func New(c Config) *Appender { return &Appender{c} }

func noMemory(op string, err error) error {
	return &skep.Error{Op: op, Kind: skep.NoMemory, Err: err}
}
