package lab

import (
	"github.com/spf13/cobra"

	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/reclaim"
	"github.com/skepkv/skep/tools/internal/replaycmd"
	"github.com/skepkv/skep/tools/internal/servecmd"
)

// app is one run of the command.
type app struct{ *command.App }

// Program is the command.
var Program = command.Program{
	Name:  "skep-bench",
	Short: "measure skep beside what bounds it",
	Long: `Measures next to the limit, in turns: fio where it is installed, the same I/O issued raw where
it is not. Medians of --rounds rounds; --json keeps every sample.`,
	NeedsSubcommand: true,
	Commands: func(c *command.App) []*cobra.Command {
		a := &app{c}
		// Benchmarks of servers start servers of their own, with skep's command.
		serve := servecmd.New(c)
		replay := replaycmd.New(c) // skep's, too
		serve.Hidden, replay.Hidden = true, true
		return describe([]*cobra.Command{replay, a.benchDevice(), a.benchLookup(), a.benchRestore(), a.benchPut(), a.benchRecover(), a.benchOverload(), a.benchRebuild(),
			a.benchInterfere(), a.benchLoss(), a.benchSparse(), a.benchElastic(), a.benchStream(), a.benchReclaim(), a.benchReclaimRole(reclaim.Borrower),
			a.benchReclaimRole(reclaim.Lender), a.benchLookupIndex(), a.benchRecoverWriter(), a.benchTTFT(), a.benchCrossover(), a.benchRESP(), a.benchWire(), a.benchEngines(), a.benchRoute(), a.benchCluster(), serve, a.Version()})
	},
}
