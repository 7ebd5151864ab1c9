// Command skep runs, measures and inspects the KV cache database. Everything it does
// is in package cli.
package main

import (
	"context"
	"os"

	"github.com/skepkv/skep/tools/internal/cli"
)

func main() {
	os.Exit(cli.Main(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
