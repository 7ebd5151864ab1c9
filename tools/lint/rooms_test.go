package lint

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// rooms says for each room (a top directory; "" is the root package) which other
// rooms it may import. Every room may import the root, which imports none.
var rooms = map[string][]string{
	"":            {},
	"layout":      {},
	"index":       {},
	"wire":        {"layout"},
	"store":       {"index", "layout"},
	"gpu":         {"layout"},
	"replication": {"wire", "layout"},
	"tools":       {"layout", "index", "wire", "store", "gpu", "replication"},
}

// inTests are packages that tests of any room may use besides: the contract test,
// its reference, what gives tests their seed, and what finds goroutines they leave behind.
var inTests = []string{"store/storetest", "store/memstore", "tools/drawn", "tools/leaks"}

// parts says the same inside the directories of packages store and replication, where the order
// matters as much: a package not listed may import no other of them.
var parts = map[string][]string{
	"store": {"store/catalog", "store/catalogdir", "store/device", "store/internal/admin", "store/internal/admission",
		"store/internal/appender", "store/internal/clean", "store/internal/commit", "store/internal/crypt",
		"store/internal/devlog", "store/internal/dirlock", "store/internal/gate", "store/internal/health",
		"store/internal/ingest", "store/internal/intents", "store/internal/keybook", "store/internal/limits",
		"store/internal/locate", "store/internal/locks", "store/internal/lookup", "store/internal/members",
		"store/internal/monitor", "store/internal/moving", "store/internal/namespaces", "store/internal/naming",
		"store/internal/observe", "store/internal/opening", "store/internal/paths", "store/internal/pinned", "store/internal/places",
		"store/internal/puts", "store/internal/recovery", "store/internal/restore", "store/internal/room",
		"store/internal/scrub", "store/internal/segio", "store/internal/sidecar", "store/internal/space",
		"store/internal/verify", "store/internal/watermark", "store/memory", "store/report", "store/segment"},
	"store/internal/admin":     {"store/report"},
	"store/internal/admission": {"store/internal/locks", "store/internal/namespaces"},
	"store/internal/appender": {"store/device", "store/internal/commit", "store/internal/crypt",
		"store/internal/namespaces",
		"store/internal/observe", "store/internal/puts", "store/internal/segio", "store/internal/space",
		"store/internal/watermark", "store/memory", "store/segment"},
	"store/catalogdir":     {"store/atomicfile", "store/catalog", "store/internal/paths"},
	"store/internal/aside": {"store/catalog", "store/catalogdir", "store/internal/paths", "store/segment"},
	"store/internal/clean": {"store/catalog", "store/device", "store/internal/appender", "store/internal/commit",
		"store/internal/devlog", "store/internal/intents", "store/internal/locks", "store/internal/namespaces",
		"store/internal/observe", "store/internal/segio", "store/internal/space", "store/internal/watermark",
		"store/segment"},
	"store/internal/commit": {"store/catalog", "store/internal/crypt", "store/internal/intents",
		"store/internal/limits", "store/internal/locks",
		"store/internal/namespaces", "store/internal/observe", "store/internal/puts", "store/internal/sidecar",
		"store/internal/space", "store/internal/watermark", "store/memory", "store/segment"},
	"store/internal/crypt": {"store/segment"},
	"store/internal/devlog": {"store/catalog", "store/internal/appender", "store/internal/commit",
		"store/internal/intents",
		"store/internal/namespaces", "store/internal/puts", "store/internal/space", "store/internal/watermark",
		"store/segment"},
	"store/internal/dirlock": {"store/internal/paths"},
	"store/internal/health":  {"store/device"},
	"store/internal/ingest": {"store/device", "store/internal/admission", "store/internal/appender",
		"store/internal/commit", "store/internal/crypt", "store/internal/gate", "store/internal/keybook",
		"store/internal/locks",
		"store/internal/namespaces", "store/internal/observe", "store/internal/pieces", "store/internal/puts",
		"store/internal/space", "store/internal/watermark", "store/memory", "store/segment"},
	"store/internal/intents": {"store/catalog", "store/internal/locks", "store/internal/watermark", "store/segment"},
	"store/internal/keybook": {"store/catalog", "store/internal/crypt", "store/internal/limits",
		"store/internal/namespaces", "store/segment"},
	"store/internal/leases": {"store/internal/locks", "store/internal/namespaces"},
	"store/internal/limits": {"store/internal/locks", "store/internal/segio"},
	"store/internal/locate": {"store/catalog", "store/internal/commit", "store/internal/crypt", "store/internal/gate",
		"store/internal/limits", "store/internal/locks", "store/internal/lookup", "store/internal/members",
		"store/internal/namespaces", "store/internal/observe", "store/internal/restore", "store/internal/segio",
		"store/internal/space", "store/memory", "store/segment"},
	"store/internal/lookup": {"store/internal/commit", "store/internal/leases", "store/internal/members",
		"store/internal/namespaces", "store/internal/observe", "store/internal/puts", "store/internal/restore",
		"store/internal/segio", "store/internal/space", "store/memory", "store/segment"},
	"store/internal/making": {"store/internal/segio"},
	"store/internal/members": {"store/catalog", "store/device", "store/internal/health", "store/internal/paths",
		"store/internal/space",
		"store/segment"},
	"store/internal/recovery": {"store/catalog", "store/device", "store/internal/crypt", "store/internal/keybook",
		"store/internal/devlog",
		"store/internal/members", "store/internal/namespaces", "store/internal/segio", "store/internal/space",
		"store/internal/watermark", "store/segment"},
	"store/internal/opening": {"store/catalog", "store/catalogdir", "store/device", "store/internal/aside",
		"store/internal/commit", "store/internal/dirlock", "store/internal/health", "store/internal/making", "store/internal/members",
		"store/internal/namespaces", "store/internal/paths", "store/internal/places", "store/internal/rebuild",
		"store/internal/recovery", "store/internal/room", "store/internal/segio", "store/internal/space",
		"store/internal/watermark", "store/report", "store/segment"},
	"store/internal/moving": {"store/catalog", "store/device", "store/internal/appender", "store/internal/clean",
		"store/internal/commit", "store/internal/compact", "store/internal/gate", "store/internal/health",
		"store/internal/limits", "store/internal/locks", "store/internal/members", "store/internal/namespaces",
		"store/internal/observe", "store/internal/segio", "store/internal/space", "store/report", "store/segment"},
	"store/internal/monitor": {"store/device", "store/internal/health", "store/internal/segio"},
	"store/internal/observe": {"store/internal/locks"},
	"store/internal/pieces":  {"store/internal/locks"},
	"store/internal/pinned": {"store/device", "store/internal/locks", "store/internal/members", "store/internal/space",
		"store/memory"},
	"store/internal/places": {"store/catalog", "store/internal/paths", "store/internal/segio", "store/segment"},
	"store/internal/puts":   {"store/internal/locks", "store/segment"},
	"store/internal/rebuild": {"store/catalog", "store/internal/locks", "store/internal/namespaces",
		"store/internal/segio", "store/report", "store/segment"},
	"store/internal/restore": {"store/device", "store/internal/crypt", "store/internal/health", "store/internal/locks",
		"store/internal/namespaces", "store/internal/observe", "store/internal/segio", "store/memory"},
	"store/internal/room": {"store/internal/observe"},
	// A drive has the queue of its reads: so space knows restore, which knows of groups what its Stripe says.
	"store/internal/space": {"store/catalog", "store/device", "store/internal/compact",
		"store/internal/health", "store/internal/limits",
		"store/internal/locks", "store/internal/restore", "store/internal/segio",
		"store/internal/watermark", "store/report", "store/segment"},
	"store/internal/scrub": {"store/catalog", "store/device", "store/internal/gate", "store/internal/limits",
		"store/internal/locks", "store/internal/namespaces",
		"store/internal/observe", "store/internal/segio", "store/internal/space",
		"store/internal/watermark", "store/report", "store/segment"},
	"store/internal/segio":      {"store/device", "store/internal/locks", "store/segment"},
	"store/internal/namespaces": {"store/internal/locks", "store/internal/observe", "store/segment"},
	"store/internal/naming": {"store/catalog", "store/internal/commit", "store/internal/devlog", "store/internal/keybook",
		"store/internal/limits", "store/internal/namespaces", "store/internal/observe", "store/internal/watermark",
		"store/segment"},
	"store/internal/sidecar": {"store/catalog", "store/internal/crypt", "store/internal/locks",
		"store/internal/namespaces", "store/internal/segio", "store/segment"},
	"store/internal/verify": {"store/catalog", "store/internal/namespaces", "store/internal/scrub", "store/internal/segio",
		"store/internal/sidecar", "store/internal/space", "store/report", "store/segment"},
	"store/internal/watermark": {"store/catalog", "store/internal/locks"},
	"store/catalog":            {"store/internal/locks"},
	"store/device":             {"store/internal/locks"},
	"store/memory":             {"store/internal/locks"},
	"store/device/devicetest":  {"store/device"},
	"store/storetest":          {"store/memstore"},
	"store/unjudged":           {"store/internal/health"},

	"replication": {"replication/answers", "replication/clustermap", "replication/placement", "replication/known",
		"replication/calls", "replication/checks", "replication/copies", "replication/errand", "replication/flow",
		"replication/keeper", "replication/lent", "replication/lives", "replication/merge", "replication/owed",
		"replication/pace", "replication/promises", "replication/runs", "replication/sched", "replication/seeds",
		"replication/underway", "replication/units"},
	"replication/fence":      {"replication/calls", "replication/clustermap"},
	"replication/flow":       {"replication/runs"},
	"replication/sealed":     {"replication/clustermap"},
	"replication/answers":    {"replication/promises"},
	"replication/bucket":     {"replication/runs"},
	"replication/bucket/s3":  {"replication/bucket"},
	"replication/keeper":     {"replication/checks", "replication/runs"},
	"replication/known":      {"replication/placement"},
	"replication/placement":  {"replication/clustermap"},
	"replication/seeds":      {"replication/clustermap"},
	"replication/consensus":  {"replication/clustermap"},
	"replication/clustermap": {},
}

// pure are packages inside a room that know the root and what parts says, and no room besides.
var pure = []string{"replication/clustermap", "replication/placement", "replication/consensus", "replication/routing"}

// allowed says why package from may not import package to (paths from the root), ""
// when it may.
func allowed(from, to string, test bool) string {
	a, b := room(from), room(to)
	if test {
		for _, p := range inTests {
			if to == p {
				return ""
			}
		}
	}
	if a != b {
		if !test && b != "" && slices.Contains(pure, from) {
			return from + " is pure: it may not know room " + name(b)
		}
		for _, r := range rooms[a] {
			if r == b {
				return ""
			}
		}
		if b == "" {
			return ""
		}
		return "room " + name(a) + " may not know room " + name(b)
	}
	if a != "store" && a != "replication" || from == to || test {
		return ""
	}
	for _, p := range parts[from] {
		if p == to {
			return ""
		}
	}
	return from + " may not know " + to
}

func name(room string) string {
	if room == "" {
		return "skep (root)"
	}
	return room
}

func room(pkg string) string {
	first, _, _ := strings.Cut(pkg, "/")
	return first
}

func TestAllowed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from, to string
		test, ok bool
	}{
		{"layout", "", false, true},
		{"", "layout", false, false},
		{"store", "index", false, true},
		{"index", "store", false, false},
		{"layout", "store/storetest", false, false},
		{"wire", "store/storetest", true, true},
		{"wire", "store", true, false},
		{"store", "store/device", false, true},
		{"store/device", "store/segment", false, false},
		{"store/device", "store", false, false},
		{"store", "store/internal/crypt", false, true},
		{"store/internal/crypt", "store", false, false},
		{"store/internal/crypt", "store/device", false, false},
		{"tools/internal/cli", "store", false, true},
		{"store", "tools/internal/hist", false, false},
		{"replication", "gpu", false, false},
		{"replication", "store", false, false},
		{"replication", "store/memstore", true, true},
		{"replication", "replication/placement", false, true},
		{"replication/placement", "replication/clustermap", false, true},
		{"replication/clustermap", "replication/placement", false, false},
		{"replication/placement", "layout", false, false},
		{"replication", "replication/consensus", false, false}, // clients do without raft
		{"replication/consensus", "replication/clustermap", false, true},
		{"replication/consensus", "wire", false, false},
	} {
		why := allowed(c.from, c.to, c.test)
		require.Equal(t, c.ok, why == "", "%s imports %s (test %v): %s", c.from, c.to, c.test, why)
	}
}

func TestRoomsImportOnlyRoomsBelow(t *testing.T) {
	t.Parallel()
	seen := 0
	for _, f := range files(t, ".go") {
		from := filepath.ToSlash(filepath.Dir(f))
		if from == "." {
			from = ""
		}
		if _, ok := rooms[room(from)]; !ok {
			t.Errorf("%s lies in no room: give %q its place in the table", f, room(from))
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), f, read(t, f), parser.ImportsOnly)
		require.NoError(t, err)
		for _, spec := range file.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			require.NoError(t, err)
			to, ok := strings.CutPrefix(path, module)
			if !ok {
				continue
			}
			seen++
			if why := allowed(from, strings.TrimPrefix(to, "/"), strings.HasSuffix(f, "_test.go")); why != "" {
				t.Errorf("%s imports %s: %s", f, path, why)
			}
		}
	}
	require.Greater(t, seen, 50, "imports were looked at")
}

// TestNobodyLooksInside: what the table of groups guards is seen by its own package, and by tests.
func TestNobodyLooksInside(t *testing.T) {
	t.Parallel()
	for _, f := range files(t, ".go") {
		dir := filepath.ToSlash(filepath.Dir(f))
		if strings.HasSuffix(f, "_test.go") || dir == "store/internal/space" || !strings.HasPrefix(dir, "store") {
			continue
		}
		require.NotContains(t, string(read(t, f)), ".space.Inside()", f)
	}
}
