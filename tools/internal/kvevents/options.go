package kvevents

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/skepkv/skep"
)

// Options of a Publisher.
type Options struct {
	Topic      string   // what every topic begins with; DefaultTopic when empty
	Node       string   // the part of the topics that says whose blocks they are
	Namespaces []string // TENANT/NAMESPACE of those that are told of; one that ends in * stands for all that begin so
	Bytes      bool     // hashes are all bytes of a key, and not its last 64 bits
	Batches    int      // that the ring holds, 1 to MaxBatches
	Room       int64    // bytes that it holds, at least LeastRoom

	// Rest is the time from one snapshot to the next, when there were several; a minute when it is 0. For tests.
	Rest time.Duration
	// Clock gives batches their numbers; time.Now when nil. For tests.
	Clock func() time.Time
	Log   *slog.Logger // nil: nothing is logged
}

// Limits of Options, and what is usual.
const (
	DefaultTopic   = "kv"
	DefaultBatches = 10_000
	DefaultRoom    = 64 << 20

	MaxBatches    = 1 << 20
	LeastRoom     = 1 << 20
	MaxRoom       = 16 << 30
	MaxTopic      = 64 // bytes of Topic
	MaxPatterns   = 256
	MaxNamespaces = 4096 // that are told of
)

// Check lists what is wrong, by the names of skep serve's settings.
func (o *Options) Check() (wrong []error) {
	bad := func(is bool, field string, value, limit any) {
		if is {
			wrong = append(wrong, skep.Invalidf("events", field, value, limit))
		}
	}
	bad(len(o.Topic) > MaxTopic || strings.ContainsAny(o.Topic, "@\x00"), "events.topic", fmt.Sprintf("%q", o.Topic),
		fmt.Sprintf("at most %d bytes, none of them @ or zero", MaxTopic))
	bad(len(o.Node) > skep.MaxNameSize, "events.node, bytes", len(o.Node), fmt.Sprintf("at most %d", skep.MaxNameSize))
	wrong = append(wrong, CheckPatterns("events.namespaces", o.Namespaces)...)
	bad(o.Batches < 1 || o.Batches > MaxBatches, "events.buffer", o.Batches, fmt.Sprintf("1 to %d", MaxBatches))
	bad(o.Room < LeastRoom || o.Room > MaxRoom, "events.buffer_bytes", o.Room, "1MiB to 16GiB")
	return wrong
}

// CheckPatterns lists what is wrong with a setting that names namespaces.
func CheckPatterns(field string, patterns []string) (wrong []error) {
	if n := len(patterns); n < 1 || n > MaxPatterns {
		wrong = append(wrong, skep.Invalidf("namespaces", field, n, fmt.Sprintf("1 to %d", MaxPatterns)))
	}
	for _, n := range patterns {
		if n != "*" && !strings.Contains(n, "/") {
			wrong = append(wrong, skep.Invalidf("namespaces", field, fmt.Sprintf("%q", n), "TENANT/NAMESPACE, which may end in *, or *"))
		}
	}
	return wrong
}

// Selects says whether a namespace is named by one of these.
func Selects(patterns []string, n *skep.NamespaceSpec) bool {
	name := n.Tenant + "/" + n.Name
	for _, pattern := range patterns {
		if begin, ok := strings.CutSuffix(pattern, "*"); ok && strings.HasPrefix(name, begin) || name == pattern {
			return true
		}
	}
	return false
}

// escape keeps @, which separates a topic's parts, out of a part.
var escape = strings.NewReplacer("%", "%25", "@", "%40", "\x00", "%00")

// topic is a namespace's: three parts, as llm-d takes them apart.
func (o *Options) topic(n *skep.NamespaceSpec) string {
	return o.Topic + "@" + escape.Replace(o.Node) + "@" + escape.Replace(n.Tenant+"/"+n.Name)
}
