// A Java machine with compiled code, worker threads, garbage to collect and a heap to keep. What
// the compiler assumed before (one class implements `Step`) is wrong afterwards.

import java.lang.management.ManagementFactory;
import java.lang.management.MemoryPoolMXBean;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

class RtJava {
    static final int WORKERS = 4;
    static final int ENTRIES = 50_000;

    static long mix(int rounds, long seed) {
        long hash = seed;
        for (int i = 0; i < rounds; i++) hash = hash * 6364136223846793005L + (hash >>> 33) + i;
        return hash;
    }

    interface Step {
        long next(long value, int round);
    }

    static final class Adds implements Step {
        public long next(long value, int round) {
            return value + round;
        }
    }

    /** Is not loaded before the checkpoint. */
    static final class Turns implements Step {
        public long next(long value, int round) {
            return value * 31 ^ round;
        }
    }

    static long walk(Step step, int rounds) {
        long value = 1;
        for (int i = 0; i < rounds; i++) value = step.next(value, i);
        return value;
    }

    /** Bytes of machine code made from methods that ran long, without what only counts calls. */
    static long compiledBytes() {
        for (MemoryPoolMXBean pool : ManagementFactory.getMemoryPoolMXBeans()) {
            if (pool.getName().contains("non-profiled")) return pool.getUsage().getUsed();
        }
        return 0;
    }

    /** The compiler has threads of its own: until it has made something of these methods. */
    static void warm() {
        long before = compiledBytes();
        for (int i = 0; i < 100_000 && (i < 500 || compiledBytes() <= before); i++) {
            mix(10_000, i);
            check(walk(new Adds(), 10_000) == 49_995_001, "a sum");
        }
        check(compiledBytes() > before, "compiled code");
    }

    static Map<Integer, String> remember() {
        Map<Integer, String> map = new HashMap<>();
        for (int i = 0; i < ENTRIES; i++) map.put(i, "value " + mix(3, i));
        return map;
    }

    static List<Long> work(ExecutorService pool) throws Exception {
        List<Future<Long>> parts = new ArrayList<>();
        for (int i = 0; i < WORKERS; i++) {
            long seed = i;
            parts.add(pool.submit(() -> mix(100_000, seed)));
        }
        List<Long> results = new ArrayList<>();
        for (Future<Long> part : parts) results.add(part.get());
        return results;
    }

    static void check(boolean holds, String what) {
        if (!holds) {
            System.out.println("FAIL: " + what);
            System.exit(1);
        }
    }

    static void churn() {
        for (int i = 0; i < 2_000; i++) {
            byte[][] garbage = new byte[64][];
            for (int j = 0; j < garbage.length; j++) garbage[j] = new byte[1024 + j];
            check(garbage[63].length == 1087 && garbage[7][0] == 0, "fresh arrays are zeros");
        }
    }

    public static void main(String[] arguments) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(WORKERS);
        Map<Integer, String> kept = remember();
        warm();
        List<Long> before = work(pool);
        churn();
        System.out.println("READY");
        System.out.flush();
        check(System.in.read() >= 0, "a byte to go on");
        check(work(pool).equals(before), "the same results of the same threads");
        churn();
        System.gc();
        check(kept.equals(remember()), "the same heap");
        check(walk(new Adds(), 10_000) == 49_995_001, "a sum of compiled code");
        check(walk(new Turns(), 3) == 29_762, "another class in the same loop");
        check(walk(new Adds(), 10_000) == 49_995_001, "a sum of code that was given up");
        Thread late = new Thread(() -> check(mix(100_000, 2) == before.get(2), "a new thread's result"));
        late.start();
        late.join();
        pool.shutdown();
        System.out.println("PASS");
        System.out.flush();
        System.exit(0);
    }
}
