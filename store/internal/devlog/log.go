package devlog

import (
	"context"
	"log/slog"
	"time"

	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/appender"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/intents"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/puts"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/internal/watermark"
)

// Config is what agrees by a Log, and by what.
type Config struct {
	Context      context.Context // ends with the store
	Catalog      *catalog.Catalog
	Names        *namespaces.Table
	Index        *index.Index
	Space        *space.Table
	Rows         *commit.Rows
	Root         *watermark.Root
	Puts         *puts.Table
	Appends      *appender.Appender
	Intents      *intents.List
	Log          *slog.Logger
	SpaceTimeout time.Duration // of who waits for room
}

// Log is what the devices' logs are to say. It is safe for any number of goroutines. Make it with New.
type Log struct {
	Config
	// Entering are those who write entries of namespaces to the logs, from finding the namespace to the end of the
	// write. Who has deleted one waits for them, and nobody waits for who does.
	Entering namespaces.Sections
}

// New makes the log of devices.
func New(c Config) *Log { return &Log{Config: c} }
