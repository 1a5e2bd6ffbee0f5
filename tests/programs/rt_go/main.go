// The Go runtime: goroutines, maps, garbage collection, and memory given back to the kernel with
// madvise and taken again as zero. Its preemption signals and its own threads run all the time.
package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sort"
	"sync"
	"syscall"
	"time"
)

func check[T comparable](what string, expected, seen T) {
	if expected != seen {
		fmt.Printf("FAIL: %s: expected %v, saw %v\n", what, expected, seen)
		os.Exit(1)
	}
}

func build(entries int) map[int]string {
	table := make(map[int]string, entries)
	for i := 0; i < entries; i++ {
		table[i] = fmt.Sprintf("value %d", i*i)
	}
	return table
}

func digest(table map[int]string) [32]byte {
	keys := make([]int, 0, len(table))
	for key := range table {
		keys = append(keys, key)
	}
	sort.Ints(keys)
	hash := sha256.New()
	for _, key := range keys {
		fmt.Fprintln(hash, key, table[key])
	}
	var sum [32]byte
	copy(sum[:], hash.Sum(nil))
	return sum
}

// Large slices come from memory that the runtime believes to be zero.
func freshMemory() {
	for _, size := range []int{1 << 12, 1 << 16, 1 << 20, 1 << 24} {
		for round := 0; round < 8; round++ {
			slice := make([]byte, size)
			for i := range slice {
				if slice[i] != 0 {
					check("fresh slice", byte(0), slice[i])
				}
				slice[i] = 0xa5
			}
		}
	}
}

func garbage() {
	var kept [][]byte
	for i := 0; i < 500; i++ {
		block := make([]byte, 1+i*37%60000)
		for at := range block {
			block[at] = byte(i)
		}
		if i%10 == 0 {
			kept = append(kept, block)
		}
	}
	for i, block := range kept {
		check("kept block", byte(i*10), block[len(block)-1])
	}
}

type worker struct {
	in  chan int
	out chan int
}

func squares(count int) []worker {
	workers := make([]worker, count)
	for i := range workers {
		workers[i] = worker{make(chan int), make(chan int)}
		go func(own worker) {
			for value := range own.in {
				own.out <- value * value
			}
		}(workers[i])
	}
	return workers
}

// Spins without a call, so that it has to be preempted by a signal.
func spin(stop *bool, mutex *sync.Mutex) {
	for {
		total := 0
		for i := 0; i < 10_000_000; i++ {
			total ^= i
		}
		mutex.Lock()
		done := *stop
		mutex.Unlock()
		if done {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func wait() {
	os.Stdout.WriteString("READY\n")
	var one [1]byte
	count, err := syscall.Read(0, one[:])
	check("read of fd 0", 1, count)
	check("whether read failed", false, err != nil)
}

func main() {
	table := build(30_000)
	before := digest(table)
	workers := squares(100)
	stop, mutex := false, sync.Mutex{}
	go spin(&stop, &mutex)
	garbage()
	freshMemory()
	debug.FreeOSMemory()
	ticker := time.NewTicker(5 * time.Millisecond)
	wait()
	check("map", before, digest(table))
	for round := 0; round < 10; round++ {
		for i := range workers {
			workers[i].in <- i + round
			check("square", (i+round)*(i+round), <-workers[i].out)
		}
	}
	freshMemory()
	garbage()
	table = nil
	debug.FreeOSMemory()
	freshMemory()
	runtime.GC()
	garbage()
	check("rebuilt map", before, digest(build(30_000)))
	<-ticker.C
	<-ticker.C
	mutex.Lock()
	stop = true
	mutex.Unlock()
	fmt.Println("PASS")
}
