// What boost.interprocess does with the same objects: a line for each figure, its name and nanoseconds.
#include <boost/interprocess/ipc/message_queue.hpp>
#include <boost/interprocess/managed_shared_memory.hpp>
#include <boost/version.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace ipc = boost::interprocess;
using Clock = std::chrono::steady_clock;

static double per(Clock::time_point begun, std::size_t count) {
    return std::chrono::duration<double, std::nano>(Clock::now() - begun).count() / count;
}

static void touch(void *object, std::uint64_t word) { *static_cast<volatile std::uint64_t *>(object) = word; }

static double pairs(ipc::managed_shared_memory &segment) {
    const std::size_t count = 100000;
    auto begun = Clock::now();
    for (std::size_t number = 0; number < count; number++) {
        void *object = segment.allocate(64);
        touch(object, number);
        segment.deallocate(object);
    }
    return per(begun, count);
}

static double many(ipc::managed_shared_memory &segment) {
    const std::size_t count = 10000;
    std::vector<std::size_t> order(count);
    for (std::size_t at = 0; at < count; at++) order[at] = at;
    std::uint64_t state = 0x9e3779b97f4a7c15;
    for (std::size_t last = count - 1; last > 0; last--) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        std::swap(order[last], order[state % (last + 1)]);
    }
    std::vector<void *> objects(count);
    double ns = 0;
    for (int turn = 0; turn < 5; turn++) {
        auto begun = Clock::now();
        for (std::size_t at = 0; at < count; at++) {
            objects[at] = segment.allocate(64);
            touch(objects[at], at);
        }
        for (std::size_t at : order) segment.deallocate(objects[at]);
        ns = per(begun, count);
    }
    return ns;
}

// Half of a round trip of a message of 64 bytes.
static double one_way(const std::string &name) {
    const std::size_t trips = 2000;
    const std::string there = name + "-there", back = name + "-back";
    ipc::message_queue to(ipc::create_only, there.c_str(), 256, 64);
    ipc::message_queue from(ipc::create_only, back.c_str(), 256, 64);
    char message[64] = {};
    ipc::message_queue::size_type bytes;
    unsigned priority;
    pid_t child = fork();
    if (child == 0) {
        for (std::size_t trip = 0; trip < trips + 100; trip++) {
            while (!to.try_receive(message, 64, bytes, priority)) {
            }
            from.send(message, 64, 0);
        }
        _exit(0);
    }
    auto begun = Clock::now();
    for (std::size_t trip = 0; trip < trips + 100; trip++) {
        if (trip == 100) begun = Clock::now();
        to.send(message, 64, 0);
        while (!from.try_receive(message, 64, bytes, priority)) {
        }
    }
    double ns = per(begun, 2 * trips);
    waitpid(child, nullptr, 0);
    ipc::message_queue::remove(there.c_str());
    ipc::message_queue::remove(back.c_str());
    return ns;
}

int main() {
    alarm(60);
    const std::string name = "farfork-bench-" + std::to_string(getpid());
    double figures[3];
    {
        ipc::managed_shared_memory segment(ipc::create_only, name.c_str(), 64 << 20);
        pairs(segment);
        figures[0] = pairs(segment);
        figures[1] = many(segment);
    }
    ipc::shared_memory_object::remove(name.c_str());
    figures[2] = one_way(name);
    std::printf("%s pair %f many %f one-way %f\n", BOOST_LIB_VERSION, figures[0], figures[1], figures[2]);
}
