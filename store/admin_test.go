package store

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// Another process sees the store at work through the socket, and only its own user can.
func TestAdminSocket(t *testing.T) {
	t.Parallel()
	o := small(t.TempDir())
	require.NoError(t, os.WriteFile(filepath.Join(o.Dir, AdminSocket), nil, 0o644), "left by a process that was killed")
	o.Admin = true
	s := openTest(t, o)
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	putRun(t, s, sc, chainKeys(1, 3), 5000)

	var st skep.Stats
	require.NoError(t, AskAdmin(testContext(t), o.Dir, "stats", &st))
	require.EqualValues(t, 3, st.PutBlocks)
	require.Len(t, st.Devices, 2)
	require.Equal(t, "t", st.Tenants[0].Name)
	var lines []string
	require.NoError(t, AskAdmin(testContext(t), o.Dir, "log", &lines))
	require.Contains(t, strings.Join(lines, "\n"), "store open")
	var no map[string]string
	require.NoError(t, AskAdmin(testContext(t), o.Dir, "drop everything", &no))
	require.Contains(t, no["error"], "must be stats, log, options, device, namespace, scrub or compact")
	var options map[string]any
	require.NoError(t, AskAdmin(testContext(t), o.Dir, "options", &options))
	require.EqualValues(t, 4<<20, options["CapacityBytes"])
	require.Equal(t, "1s", options["FlushInterval"])

	if runtime.GOOS != "windows" {
		info, err := os.Stat(filepath.Join(o.Dir, AdminSocket))
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o600), info.Mode().Perm())
	}
	require.NoError(t, s.Close())
	requireKind(t, skep.Missing, AskAdmin(testContext(t), o.Dir, "stats", &st))
}

// A store is of use without its socket, and says that it has none.
func TestAdminSocketNeedsAShortPath(t *testing.T) {
	t.Parallel()
	o := small(filepath.Join(t.TempDir(), strings.Repeat("x", 120)))
	o.Admin = true
	var log bytes.Buffer
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	s, err := Open(testContext(t), o)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.Contains(t, log.String(), "has no admin socket")
	require.NoFileExists(t, filepath.Join(o.Dir, AdminSocket))
}

// Every device says how worn it is, or why it does not.
func TestStatsOfWear(t *testing.T) {
	t.Parallel()
	// A file on whatever this machine has: an answer or a reason.
	s := openTest(t, small(t.TempDir()))
	eventually(t, "the drives are asked", func() bool { return s.wear.Of(0).Why != "not asked" })
	st, err := s.Stats(testContext(t))
	require.NoError(t, err)
	for _, d := range st.Devices {
		require.NotEqual(t, d.Wear.Known, d.Wear.Why != "", "%+v", d.Wear)
	}
}

// What lookups ask for shows in the curve, and what programs were told of in theirs.
func TestStatsOfReuseAndPrograms(t *testing.T) {
	t.Parallel()
	o := small(t.TempDir())
	o.CapacityBytes = 16 << 20
	s := openTest(t, o)
	ctx := testContext(t)
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	keys := chainKeys(1, 400)
	putRun(t, s, sc, keys, 4000)
	for range 10 {
		_, err := s.Lookup(ctx, &skep.LookupRequest{Scope: sc, Keys: keys, Lease: skep.NoLease})
		require.NoError(t, err)
	}
	var st skep.Stats
	eventually(t, "the references are taken in", func() bool {
		var err error
		st, err = s.Stats(ctx)
		require.NoError(t, err)
		return st.Reuse.Devices > .85
	})
	require.EqualValues(t, 4000, st.Reuse.References)
	require.NotEmpty(t, st.Reuse.Curve)
	require.LessOrEqual(t, st.Reuse.Curve[0].HitRatio, st.Reuse.Devices)

	n, err := s.Hint(ctx, sc, keys[:3], skep.Hint{Program: "agent-7"})
	require.NoError(t, err)
	require.Equal(t, 3, n)
	requireChain(t, s, sc, keys[:5], 4000)
	st, err = s.Stats(ctx)
	require.NoError(t, err)
	require.Equal(t, []skep.ProgramStats{{Name: "agent-7", Blocks: 3, RestoredBlocks: 3}}, st.Programs)
	require.Equal(t, "t", st.Tenants[0].Name)
	require.Positive(t, st.Tenants[0].Bytes)
}

// Who adds an option says here whether it is shown: one that is a secret is of a type that hides it, as keys are.
func TestOptionsThatAreShown(t *testing.T) {
	t.Parallel()
	shown := []string{"Admin", "Admission", "AdmissionGhosts", "Backend", "BackgroundRate", "BlockBytes", "CacheBytes",
		"CallBytes", "CapacityBytes", "CatalogCacheBytes", "CatalogDir", "ChangeCapacity", "Degraded", "DeviceCount",
		"Devices", "Dir", "EncryptionKeys", "EventBuffer", "FirstCome", "FlushBytes", "FlushInterval", "HealAfter",
		"IOBytes", "IndexBytes", "LeasedBytes", "LogicalBlocks", "MemoryBytes", "MustExist", "NoRebalance", "NoRebuild",
		"OpTimeout", "PinnedBytes", "Policy", "PrefetchBytes", "ReadInPlace", "ReadOnly", "ReserveBytes",
		"RestorePolicy", "ReuseSamples", "ScrubRate", "SegmentBytes", "SpaceTimeout", "TenantBytes", "TenantNamespaces",
		"WithoutKeys", "Workers", "WriteBudget", "WriterBytes"}
	keys, err := ParseEncryptionKeys([]byte(strings.Repeat("a5", 32)))
	require.NoError(t, err)
	all := (&Options{EncryptionKeys: map[string][]EncryptionKey{"t": keys}}).shown()
	require.Equal(t, shown, slices.Sorted(maps.Keys(all)))
	text, err := json.Marshal(all)
	require.NoError(t, err)
	require.Contains(t, string(text), "[encryption key]")
	require.NotContains(t, string(text), "a5a5")
	require.NotContains(t, string(text), "165,165")
}
