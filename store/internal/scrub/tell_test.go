package scrub

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/report"
)

// A pass is a warning where something was wrong or it ended early, and the line says what.
func TestAPassThatIsAWarningSaysWhy(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		rep  report.Scrub
		err  error
		has  []string
	}{
		{"sound", report.Scrub{Blocks: 3}, nil, []string{"level=INFO", "blocks=3"}},
		{"a log was mended", report.Scrub{LogsMended: 2}, nil, []string{"level=WARN", `"logs mended"=2`}},
		{"a fault", report.Scrub{Unmended: 1, Faults: []report.Fault{{What: "log", Problem: "torn in the middle"}}}, nil,
			[]string{"level=WARN", "unmended=1", "faults=1", "torn in the middle"}},
		{"ended early", report.Scrub{}, errors.New("the catalog does not answer"), []string{"level=WARN", "the catalog does not answer"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			(&Scrubber{Config: Config{Log: slog.New(slog.NewTextHandler(&log, nil))}}).tell(&tt.rep, tt.err)
			for _, has := range tt.has {
				require.Contains(t, log.String(), has)
			}
			require.NotContains(t, log.String(), "nil")
		})
	}
}
