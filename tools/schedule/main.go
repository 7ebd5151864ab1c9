// Command schedule writes a build of the engine in which goroutines can be made to wait wherever they meet:
//
//	go run ./tools/schedule -o DIR
//	go test -tags invariants -overlay DIR/overlay.json ./store
//
// as `make schedule` does. DIR/places.json lists the places by number. See package store/schedule for what happens there.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	dir := flag.String("o", "", "write the build's files to this directory")
	flag.Parse()
	if *dir == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	n, err := write(".", *dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, "schedule:", err)
		os.Exit(1)
	}
	fmt.Println(n, "places")
}
