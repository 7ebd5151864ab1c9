// Command skep-bench measures the KV cache database beside what bounds it, and replays
// recorded workloads on it. Everything it does is in package lab.
package main

import (
	"context"
	"os"

	"github.com/skepkv/skep/tools/internal/lab"
)

func main() {
	os.Exit(lab.Program.Main(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
