//go:build linux

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// docs/reference/skep-gpu.md has every flag of what lends and what serves, under the command's name.
func TestDocsFlagsAreDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/reference/skep-gpu.md")
	require.NoError(t, err)
	for _, cmd := range []*cobra.Command{lendCommand(nil, nil), serveCommand(nil)} {
		_, section, ok := strings.Cut(string(page), "\n## skep-gpu "+cmd.Name()+"\n")
		require.True(t, ok, cmd.Name())
		section, _, _ = strings.Cut(section, "\n## ")
		n := 0
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			n++
			if f.Hidden {
				return // an older name
			}
			require.Contains(t, section, "`--"+f.Name+"`", "%s --%s", cmd.Name(), f.Name)
		})
		require.Greater(t, n, 5)
	}
}
